//! Whom to drive: a URL taken apart.

use std::net::{SocketAddr, ToSocketAddrs as _};

/// The URL can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It is no URL.
    #[error("`{0}` is no URL that can be driven: write http://HOST:PORT or http://HOST:PORT/PATH")]
    Url(String),
    /// The name does not resolve.
    #[error("cannot find the address of {host}")]
    Resolve {
        /// Host and port.
        host: String,
        /// Why.
        source: std::io::Error,
    },
}

/// A URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port` as it goes into `Host`.
    pub authority: String,
    /// The first address of the host.
    pub address: SocketAddr,
    /// Path and query, if the URL has more than `/`.
    pub path: Option<String>,
}

impl Target {
    /// Takes `http://host[:port][/path]` apart (`http://` may be left out) and resolves the host.
    ///
    /// # Errors
    /// If it is no such URL or the host has no address.
    pub fn parse(url: &str) -> Result<Target, TargetError> {
        let wrong = || TargetError::Url(url.to_owned());
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err(wrong()),
            None => url,
        };
        let (authority, path) = rest
            .find('/')
            .map_or((rest, ""), |slash| rest.split_at(slash));
        if authority.is_empty() || authority.contains(['@', ' ', '?', '#']) {
            return Err(wrong());
        }
        // `[::1]:80` has a port, `[::1]` has none.
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let resolve = |source| TargetError::Resolve {
            host: host.clone(),
            source,
        };
        let address = host
            .to_socket_addrs()
            .map_err(resolve)?
            .next()
            .ok_or_else(wrong)?;
        let path = (path.len() > 1).then(|| path.to_owned());
        Ok(Target {
            authority: authority.to_owned(),
            address,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let target = Target::parse("http://127.0.0.1:8080/v1/x?y=1").expect("a URL");
        assert_eq!(target.authority, "127.0.0.1:8080");
        assert_eq!(target.path.as_deref(), Some("/v1/x?y=1"));
        assert_eq!(
            Target::parse("127.0.0.1").expect("a URL").address,
            "127.0.0.1:80".parse().expect("an address")
        );
        assert_eq!(Target::parse("http://[::1]:9/").expect("a URL").path, None);
        for url in ["https://127.0.0.1", "http://", "http://u@h", "ftp://h"] {
            assert!(
                matches!(Target::parse(url), Err(TargetError::Url(_))),
                "{url}"
            );
        }
    }
}
