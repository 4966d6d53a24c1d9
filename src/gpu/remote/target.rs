//! Where a worker is: its URL.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use super::message::shortened;

/// A worker's base URL, taken apart: `http://HOST:PORT`, perhaps with a path in front of `/internal/batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A name, an IPv4 address or an IPv6 address without its brackets.
    host: String,
    port: u16,
    /// Empty, or `/…` without a slash at its end.
    prefix: String,
}

impl Target {
    /// The value of `Host`.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// `route`, as it stands on the worker.
    pub fn path(&self, route: &str) -> String {
        format!("{}{route}", self.prefix)
    }

    /// The addresses that the name stands for now. May ask the network.
    ///
    /// # Errors
    /// As the system says, or there is none.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let addresses: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if addresses.is_empty() {
            return Err(io::Error::other("the name has no address"));
        }
        Ok(addresses)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.prefix)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let wrong = |problem: &str| {
            // What stands there may be anything, if it was the wrong file that was named.
            let shown = shortened(text);
            format!(
                "{shown:?} {problem}; write a worker as http://HOST:PORT, such as http://10.0.0.7:8081"
            )
        };
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(wrong(
                    "is https, which needs a proxy in front of the worker and one here",
                ));
            }
            _ => return Err(wrong("does not begin with http://")),
        };
        if text.contains(char::is_whitespace) {
            return Err(wrong("holds a space: is it more than one URL?"));
        }
        let (authority, path) = rest
            .find('/')
            .map_or((rest, ""), |slash| rest.split_at(slash));
        let (host, port) = authority
            .rsplit_once(':')
            .ok_or_else(|| wrong("has no port"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let in_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if host.is_empty() {
            return Err(wrong("has no host"));
        }
        if !host.bytes().all(in_host) {
            return Err(wrong("has a host that is neither a name nor an address"));
        }
        let port = port.parse().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| wrong("has a port that is no number from 1 to 65535"))?;
        let in_path = |byte: u8| byte.is_ascii_graphic() && !b"?#".contains(&byte);
        if !path.bytes().all(in_path) {
            return Err(wrong("has a path that can't be one"));
        }
        Ok(Target {
            host: host.to_owned(),
            port,
            prefix: path.trim_end_matches('/').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().expect("a worker's URL")
    }

    #[test]
    fn a_url_is_taken_apart_and_written_back() {
        for text in [
            "http://10.0.0.7:8081",
            "http://gpu-3.local:80",
            "http://[::1]:9",
            "http://h:1/a/b",
        ] {
            assert_eq!(target(text).to_string(), text);
        }
        assert_eq!(target("http://h:1/").to_string(), "http://h:1");
        assert_eq!(target("http://[::1]:9").authority(), "[::1]:9");
        assert_eq!(
            target("http://h:1/a").path("/internal/batch"),
            "/a/internal/batch"
        );
        assert_eq!(
            target("http://127.0.0.1:7").resolve().expect("numeric"),
            [([127, 0, 0, 1], 7).into()]
        );
    }

    #[test]
    fn the_refusal_says_what_is_wrong() {
        for (text, problem) in [
            ("http://h", "has no port"),
            ("http://h:65536", "no number from 1 to 65535"),
            ("http://h:0", "no number from 1 to 65535"),
            ("http://a:1 http://b:1", "more than one URL?"),
            ("http://u@h:1", "neither a name nor an address"),
            ("http://:1", "has no host"),
        ] {
            let refused = text.parse::<Target>().expect_err(text);
            assert!(refused.contains(problem), "{text:?}: {refused}");
        }
        let endless = "x".repeat(1 << 20).parse::<Target>();
        assert!(endless.expect_err("no URL").len() < 300);
    }

    #[test]
    fn what_is_no_workers_url_is_refused_with_an_example() {
        for text in [
            "",
            "h:1",
            "https://h:1",
            "http://h",
            "http://:1",
            "http://h:0",
            "http://h:65536",
            "http://h:x",
            "http://u@h:1",
            "http://h:1/?q",
            "http://h:1/ä",
            "ftp://h:1",
            "http://h:1\r\n",
        ] {
            let refused = text.parse::<Target>().expect_err(text);
            assert!(refused.contains("http://HOST:PORT"), "{text:?}: {refused}");
        }
    }
}
