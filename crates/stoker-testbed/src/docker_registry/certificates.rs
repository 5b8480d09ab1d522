//! A CA and a certificate of it for loopback, made for one registry. The keys never leave its directory.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::DockerRegistryError;
use crate::plot::Plot;

#[derive(Debug)]
pub(super) struct Certificates {
    /// The CA's certificate as PEM.
    pub(super) ca: String,
    /// The file of the registry's certificate.
    pub(super) certificate: PathBuf,
    /// The file of its key.
    pub(super) key: PathBuf,
}

impl Certificates {
    pub(super) fn make(plot: &Plot) -> Result<Self, DockerRegistryError> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "testbed CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate()?;
        let ca = authority.self_signed(&authority_key)?.pem();

        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "testbed registry");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &Issuer::new(authority, authority_key))?;
        Ok(Self {
            ca,
            certificate: plot.write("registry.pem", certificate.pem())?,
            key: plot.write("registry.key", key.serialize_pem())?,
        })
    }
}
