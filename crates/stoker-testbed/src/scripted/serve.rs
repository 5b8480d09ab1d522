//! The server's half of CRI, as far as agents use it: a path in, an answer of the runtime out. What it does not know it
//! says it does not.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use stoker_runtime::wire::cri as wire;
use tokio::net::UnixStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;

use super::Scripted;

/// Serves one connection to its end.
pub(super) async fn connection(runtime: Arc<Scripted>, stream: UnixStream) {
    let service = service_fn(move |request| {
        let runtime = runtime.clone();
        async move { Ok::<_, Infallible>(answer(&runtime, request).await) }
    });
    // However it ended, the next one is waited for.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(runtime: &Arc<Scripted>, request: Request<Incoming>) -> Response<Body> {
    let it = runtime.clone();
    let name = |image: Option<wire::ImageSpec>| image.map(|image| image.image).unwrap_or_default();
    match request.uri().path() {
        "/runtime.v1.RuntimeService/Version" => {
            unary(request, move |_: wire::VersionRequest| ready(Ok(it.version()))).await
        }
        "/runtime.v1.ImageService/ImageStatus" => {
            unary(request, move |asked: wire::ImageStatusRequest| ready(Ok(it.status(&name(asked.image))))).await
        }
        "/runtime.v1.ImageService/ListImages" => {
            unary(request, move |_: wire::ListImagesRequest| ready(Ok(it.list()))).await
        }
        "/runtime.v1.ImageService/PullImage" => {
            let pull = move |asked: wire::PullImageRequest| async move { it.pull(&name(asked.image)).await };
            unary(request, pull).await
        }
        "/runtime.v1.ImageService/RemoveImage" => {
            unary(request, move |asked: wire::RemoveImageRequest| ready(it.remove(&name(asked.image)))).await
        }
        "/runtime.v1.ImageService/ImageFsInfo" => {
            unary(request, move |_: wire::ImageFsInfoRequest| ready(Ok(it.filesystem()))).await
        }
        path => Status::unimplemented(format!("not in the script: {path}")).into_http(),
    }
}

async fn unary<Q, A, F>(request: Request<Incoming>, act: impl FnOnce(Q) -> F) -> Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
    F: Future<Output = Result<A, Status>>,
{
    let mut act = Some(act);
    let service = tower::service_fn(move |asked: tonic::Request<Q>| {
        let acted = act.take().map(|act| act(asked.into_inner()));
        async move {
            match acted {
                Some(acted) => acted.await.map(tonic::Response::new),
                None => Err(Status::internal("a unary call has one message")),
            }
        }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).unary(service, request).await
}
