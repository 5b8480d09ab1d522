//! A CA and a server certificate of it, made for one server of a test.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// All as PEM.
pub(crate) struct Certificates {
    /// The CA's certificate.
    pub(crate) ca: String,
    /// The server's certificate.
    pub(crate) certificate: String,
    /// The server's key.
    pub(crate) key: String,
}

impl Certificates {
    /// The certificate holds for these names and addresses.
    pub(crate) fn make(names: &[&str]) -> Result<Self, rcgen::Error> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, "testbed CA");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate()?;
        let ca = authority.self_signed(&authority_key)?.pem();

        let mut params = CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, "testbed server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &Issuer::new(authority, authority_key))?;
        Ok(Self { ca, certificate: certificate.pem(), key: key.serialize_pem() })
    }
}
