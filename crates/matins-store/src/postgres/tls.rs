//! TLS to the database: which certificates of a server are good.
//!
//! Signatures of the handshake are checked in every mode; what differs is whose certificate it may
//! be. Must never accept more than the address asks for.

use std::path::Path;
use std::sync::Arc;

use matins_core::store::{Result, StoreError};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::{Judge, TlsWish};

pub(super) fn connector(wish: &TlsWish) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let authorities = match wish.judge {
        Judge::Nothing => None,
        Judge::Authority | Judge::AuthorityAndHost => {
            let roots = Arc::new(authorities(wish.authorities.as_deref())?);
            let judge = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            let judge = judge.build().map_err(|error| broken(format!("sslrootcert: {error}")))?;
            Some(judge)
        }
    };
    let any_host = wish.judge != Judge::AuthorityAndHost;
    let verifier = Verifier { provider: provider.clone(), authorities, any_host };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(format!("TLS: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match &wish.client {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates("sslcert", cert)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                unreadable(
                    "sslkey",
                    key,
                    &error,
                    "expected a private key in PEM without a password",
                )
            })?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| broken(format!("sslcert and sslkey: {error}")))?
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            for certificate in certificates("sslrootcert", file)? {
                let added = roots.add(certificate);
                added
                    .map_err(|error| broken(format!("sslrootcert: {}: {error}", file.display())))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(broken(
                    "this host trusts no authority: give sslrootcert, or install the package \
                     ca-certificates"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(roots)
}

fn certificates(name: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let expected = "expected certificates in PEM";
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| unreadable(name, file, &error, expected))?;
    if found.is_empty() {
        return Err(broken(format!("{name}: {}: {expected}, found none", file.display())));
    }
    Ok(found)
}

fn unreadable(
    name: &str,
    file: &Path,
    error: &rustls::pki_types::pem::Error,
    expected: &str,
) -> StoreError {
    broken(format!("{name}: {}: {error}; {expected}", file.display()))
}

fn broken(text: String) -> StoreError {
    StoreError::Broken(text)
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None`: any certificate will do.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    any_host: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let judged = authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match judged {
            // The name is looked at last: everything else was in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_host => Ok(ServerCertVerified::assertion()),
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
