//! A registry of a test's own, behind a link that counts, stalls and breaks; nodes pull through it.

use std::net::Ipv4Addr;

use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::Image;
use stoker_testbed::proxy::Proxy;

use crate::bed::Cluster;

/// The control plane on the network of the nodes: where this process is.
const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The registry and the link to it. References name the link.
pub(crate) struct Linked {
    pub(crate) real: DockerRegistry,
    pub(crate) link: Proxy,
    pub(crate) image: Image,
    /// What the image is called.
    pub(crate) reference: String,
}

impl Linked {
    /// Starts it, with one image in it, and tells the nodes that it speaks plain HTTP.
    pub(crate) async fn start(cluster: &Cluster, accounts: &[(&str, &str)], image: Image) -> Self {
        let accounts = accounts.iter().map(|(name, password)| (name.to_string(), password.to_string())).collect();
        let real = DockerRegistry::start(docker_registry::Options { accounts, tls: false }).await.unwrap().unwrap();
        let link = Proxy::start_at(HERE, real.addr()).await.unwrap();
        real.push("shop/web", "v1", &image).await.unwrap();
        let host = link.host();
        let hosts = format!("[host.\"http://{host}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
        for node in ["n1", "n2"] {
            let folder = format!("/etc/containerd/certs.d/{host}");
            let script = format!("mkdir -p {folder} && cat > {folder}/hosts.toml <<'END'\n{hosts}END\n");
            cluster.on_node(node, &script).await;
        }
        Self { real, link, image, reference: format!("{host}/shop/web:v1") }
    }

    /// Fails where the nodes together received notably more than this many times the image.
    #[track_caller]
    pub(crate) fn sent_at_most(&self, times: u64) {
        let (sent, whole) = (self.link.received(), times * self.image.layer_bytes());
        assert!(sent <= whole + whole / 50 + (1 << 20), "{sent} bytes left the registry; all there is, is {whole}");
    }
}
