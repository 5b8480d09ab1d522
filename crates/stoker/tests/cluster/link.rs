//! A registry of a test's own, behind a link that counts, stalls and breaks; nodes pull through it.

use std::net::Ipv4Addr;

use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::Image;
use stoker_testbed::proxy::Proxy;

use crate::bed::{Cluster, image};

/// The control plane on the network of the nodes: where this process is.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

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
            cluster.on_node(node, &script).await.exits(0);
        }
        Self { real, link, image, reference: format!("{host}/shop/web:v1") }
    }

    /// With an image of which some has come to the nodes when this returns, and no more comes. `more` says which nodes, if not
    /// all of them.
    pub(crate) async fn half_way(cluster: &Cluster, job: &str, more: &[&str]) -> Self {
        let linked = Self::start(cluster, &[], image(20_000_000)).await;
        linked.link.stall_after(8_000_000);
        let pull = ["pull", &linked.reference, "--name", job, "--no-wait"];
        cluster.stoker(&[&pull, more].concat()).await.exits(0);
        linked.link.wait_for_bytes(8_000_000).await.unwrap();
        linked
    }

    /// Fails where so many nodes together received notably more than the image each. For each time that one was interrupted, what
    /// waited in its socket's buffer may come again.
    #[track_caller]
    pub(crate) fn sent_at_most(&self, nodes: u64, cuts: u64) {
        let (sent, whole) = (self.link.received(), nodes * self.image.layer_bytes());
        assert!(
            sent <= whole + whole / 50 + cuts * (3 << 20),
            "{sent} bytes left the registry; all there is, is {whole}"
        );
    }
}
