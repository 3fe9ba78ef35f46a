//! Certificate authorities for tests, and certificates that they sign.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd};

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn sign(&self, name: &str) -> Pair {
        self.sign_params(CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// A certificate for a URI, such as a SPIFFE ID.
    pub fn sign_uri(&self, uri: &str) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        self.sign_params(params)
    }

    /// A certificate for texts as DNS names, whether they are some or not.
    pub fn sign_as_dns(&self, names: &[&str]) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names =
            names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
        self.sign_params(params)
    }

    /// A certificate that expired long ago.
    pub fn sign_expired(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        self.sign_params(params)
    }

    fn sign_params(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}
