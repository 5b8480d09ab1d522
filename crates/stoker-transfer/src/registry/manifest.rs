//! From a name to the list of blobs.
//!
//! A reference, a digest and a platform come in; a descriptor or a whole [`PlatformImage`] goes out, every document of it
//! checked against the digest that named it. Blobs are not touched.

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderMap, Method};
use bytes::Bytes;
use oci_spec::image::{Descriptor, Digest, DigestAlgorithm, MediaType};
use sha2::{Digest as _, Sha256};

use super::body::is_packed;
use super::http::content_length;
use super::{Error, LoginRefusal, Party, Registry, RegistryQuestion, RequestProblem, Walk};
use crate::hash::hex;
use crate::hosts::{Host, HostNeed};
use crate::image::{
    self, Bad, Descended, Descent, Document, MOST_MANIFEST_BYTES, ParsedDocument, PlatformImage, too_large,
};
use crate::login::Login;
use crate::platform::Platform;
use crate::reference::{Address as _, Reference};

const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// A document with its parsed form, and the host that it came from.
type FoundDocument = (Document, ParsedDocument, Box<Party>);

/// What a HEAD told us, as far as it did.
struct HeadAnswer {
    digest: Option<Digest>,
    media_type: Option<MediaType>,
    size: Option<u64>,
}

impl Registry {
    /// The descriptor that a tag (or digest) points to now. Where it is an index, the index's: it serves all platforms.
    pub async fn resolve(&self, image: &Reference, login: Option<&Login>) -> Result<Descriptor, crate::Error> {
        let need = if image.pinned().is_some() { HostNeed::Pull } else { HostNeed::Resolve };
        let mut walk = self.walk(image, need).await?;
        loop {
            match self.resolve_at(walk.asked(), image, login).await {
                Ok(descriptor) => {
                    walk.answered();
                    return Ok(descriptor);
                }
                Err(error) => {
                    let Err(error) = walk.after(error).await else { continue };
                    return Ok(self.second_try(&walk, image, login, error).await?);
                }
            }
        }
    }

    /// Asks for the manifest after a HEAD has failed for good: only the answer to a GET has a body that explains the error,
    /// and some registries answer GET alone. Does not send a refused password again, and does not bother a registry that
    /// limits its rate.
    async fn second_try(
        &self,
        walk: &Walk<'_>,
        image: &Reference,
        login: Option<&Login>,
        error: Error,
    ) -> Result<Descriptor, Error> {
        match error.problem() {
            Some(RequestProblem::NotFound { .. } | RequestProblem::Server { .. }) => {}
            Some(RequestProblem::Unauthorized { why: LoginRefusal::Forbidden, .. }) => {}
            _ => return Err(error),
        }
        let question = question(image, image.manifest_name(), login, Method::GET);
        match self.document_at(walk.host(), &question, image.pinned().as_ref()).await {
            Ok((document, ..)) => Ok(document.descriptor),
            Err(other) if other.kind() == error.kind() => Err(walk.last(other)),
            Err(_) => Err(error),
        }
    }

    /// The documents of the image behind this digest for this platform, each checked against its digest.
    pub async fn image(
        &self,
        image: &Reference,
        digest: &Digest,
        platform: &Platform,
        login: Option<&Login>,
    ) -> Result<PlatformImage, crate::Error> {
        let mut descent = Descent::new(platform);
        let mut digest = digest.clone();
        loop {
            let question = question(image, digest.as_ref(), login, Method::GET);
            let (document, parsed, who) = self.document(&question, &digest).await?;
            match descent.take(document, parsed) {
                Ok(Descended::Image(image)) => return Ok(*image),
                Ok(Descended::To(below)) => digest = below,
                Err(bad) => return Err(refuse(&question, who, bad).into()),
            }
        }
    }

    async fn resolve_at(&self, host: &Host, image: &Reference, login: Option<&Login>) -> Result<Descriptor, Error> {
        let question = question(image, image.manifest_name(), login, Method::HEAD);
        let answer = self.ask(&question, host).await;
        let who = |elsewhere| question.who(host).redirected(elsewhere);
        match answer.map(|answer| (told(&answer.headers), who(answer.elsewhere))) {
            Ok((HeadAnswer { digest: Some(digest), media_type: Some(media_type), size: Some(size) }, who)) => {
                if image.pinned().is_some_and(|asked| asked != digest) {
                    return Err(question.error(who, RequestProblem::DigestMismatch { actual: digest.to_string() }));
                }
                if size > MOST_MANIFEST_BYTES as u64 {
                    return Err(refuse(&question, who, too_large(size)));
                }
                Ok(Descriptor::new(media_type, size, digest))
            }
            // A registry that answers a HEAD in part or not at all is asked for the thing itself.
            Err(error) if !matches!(error.status(), Some(400 | 405 | 501)) => Err(error),
            Ok(_) | Err(_) => {
                let question = RegistryQuestion { method: Method::GET, ..question };
                let (document, ..) = self.document_at(host, &question, image.pinned().as_ref()).await?;
                Ok(document.descriptor)
            }
        }
    }

    /// Fetches, verifies and reads the document of this digest, from whoever has it.
    async fn document(&self, question: &RegistryQuestion<'_>, digest: &Digest) -> Result<FoundDocument, Error> {
        let mut walk = self.walk(question.image, HostNeed::Pull).await?;
        loop {
            match self.document_at(walk.asked(), question, Some(digest)).await {
                Ok(document) => {
                    walk.answered();
                    return Ok(document);
                }
                Err(error) => walk.after(error).await?,
            }
        }
    }

    async fn document_at(
        &self,
        host: &Host,
        question: &RegistryQuestion<'_>,
        expected: Option<&Digest>,
    ) -> Result<FoundDocument, Error> {
        let mut answer = self.ask(question, host).await?;
        let told = told(&answer.headers);
        let who = question.who(host).redirected(answer.elsewhere.clone());
        let body = self.inner.http.read(&mut answer, MOST_MANIFEST_BYTES).await;
        let bytes = body.map_err(|failure| self.failed(question, host, failure))?;
        let digest = digest_of(&bytes).map_err(|why| question.invalid(host, why))?;
        // For a tag the server's own word counts: bytes that do not match it were changed on the way.
        if let Some(expected) = expected.or(told.digest.as_ref())
            && *expected != digest
        {
            answer.body.spoiled();
            return Err(question.error(who, RequestProblem::DigestMismatch { actual: digest.to_string() }));
        }
        match image::parse(&bytes, told.media_type.as_ref()) {
            Ok((media_type, parsed)) => {
                let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest);
                Ok((Document { descriptor, bytes }, parsed, who))
            }
            Err(bad) => {
                answer.body.spoiled();
                Err(refuse(question, who, bad))
            }
        }
    }
}

pub(super) fn question<'a>(
    image: &'a Reference,
    name: &str,
    login: Option<&'a Login>,
    method: Method,
) -> RegistryQuestion<'a> {
    // A child of an index is named with its own digest; the image's name alone would point to the wrong document.
    let what =
        if image.manifest_name() == name { format!("image {image}") } else { format!("manifest {name} of {image}") };
    let path = format!("manifests/{name}");
    RegistryQuestion { image, login, method, path, accept: Some(ACCEPT), from: 0, small: false, what }
}

fn told(headers: &HeaderMap) -> HeadAnswer {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let digest = text("docker-content-digest").and_then(|text| Digest::try_from(text.trim()).ok());
    let media_type = text(CONTENT_TYPE.as_str()).map(|text| text.split(';').next().unwrap_or("").trim());
    HeadAnswer {
        digest: digest.filter(|digest| *digest.algorithm() == DigestAlgorithm::Sha256),
        media_type: media_type.map(MediaType::from).filter(|media_type| image::shape(media_type).is_some()),
        // Where the answer to a GET would be compressed, this is not the length of the manifest.
        size: content_length(headers).filter(|_| !is_packed(headers)),
    }
}

fn digest_of(bytes: &Bytes) -> Result<Digest, String> {
    Digest::try_from(format!("sha256:{}", hex(Sha256::new_with_prefix(bytes)))).map_err(|error| error.to_string())
}

fn refuse(question: &RegistryQuestion<'_>, who: Box<Party>, bad: Bad) -> Error {
    question.error(who, bad.into())
}

impl From<Bad> for RequestProblem {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Bound(bound) => Self::TooLarge(bound),
            Bad::Content(why) => Self::InvalidContent { why },
            Bad::Schema1 => Self::Schema1,
            Bad::Algorithm(digest) => {
                let digest: String = digest.to_string().chars().take(20).collect();
                Self::Algorithm { digest: format!("{digest}…") }
            }
            Bad::Platform { platform, offered } => Self::PlatformMissing { platform: platform.to_string(), offered },
        }
    }
}
