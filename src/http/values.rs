//! The values of single headers: small pure parsers, each of which is given one header line's value.
//!
//! Called by [`parse`](super::parse) only. They work on bytes because HTTP does; what they hand on as text has been
//! checked to be visible ASCII.

use std::net::Ipv6Addr;
use std::time::Duration;

/// What the caller says about the media type of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentType {
    /// No `Content-Type` at all. The route's only type is assumed.
    #[default]
    Missing,
    /// `application/json` or `application/*+json`, with any parameters.
    Json,
    /// Anything else.
    Other,
}

/// Longest request id that is kept.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id, if it is one that may be repeated in answers and logs: 1 to 128 bytes of `[A-Za-z0-9._~:+/=-]`.
pub fn request_id(value: &[u8]) -> Option<&str> {
    let fits = (1..=REQUEST_ID_BYTES_MAX).contains(&value.len());
    let clean = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:+/=-".contains(byte);
    if fits && value.iter().all(clean) {
        std::str::from_utf8(value).ok()
    } else {
        None
    }
}

/// Reads a media type.
pub fn content_type(value: &[u8]) -> ContentType {
    let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
    let essence = essence.trim_ascii();
    let Some((kind, rest)) = essence.split_at_checked("application/".len()) else {
        return ContentType::Other;
    };
    let suffix = rest.len() > 5 && rest[rest.len() - 5..].eq_ignore_ascii_case(b"+json");
    if kind.eq_ignore_ascii_case(b"application/") && (rest.eq_ignore_ascii_case(b"json") || suffix)
    {
        ContentType::Json
    } else {
        ContentType::Other
    }
}

/// The elements of a comma-separated list, without the white space around them and without empty ones.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// Digits only, no sign, no white space, and it must fit.
pub fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Whether the value can be a `Host`: an authority, or empty, which RFC 9112 allows.
pub fn is_host(value: &[u8]) -> bool {
    value.is_empty() || is_authority(value)
}

/// Whether the value is what an http URL has between `//` and its path: a name or an address, not empty, with an optional
/// port (RFC 9110, section 4.2; RFC 3986, section 3.2). User names are refused, as the former demands: `good@evil` is
/// read as either by somebody.
pub fn is_authority(value: &[u8]) -> bool {
    let (host, port) = match value.iter().rposition(|&byte| byte == b':') {
        // The colons inside brackets belong to an IPv6 address.
        Some(colon) if !value[colon..].contains(&b']') => value.split_at(colon),
        _ => (value, &[][..]),
    };
    let is_sound = match host {
        [b'[', address @ .., b']'] => is_ip_literal(address),
        name => !name.is_empty() && is_name(name),
    };
    let port = port.strip_prefix(b":").unwrap_or_default();
    is_sound && (port.is_empty() || digits(port).is_some_and(|port| port <= u16::MAX.into()))
}

/// What stands in brackets: an IPv6 address, or one of a kind that is yet to come (`v1.…`).
fn is_ip_literal(address: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(address) else {
        return false;
    };
    let later = |rest: &str| {
        rest.split_once('.').is_some_and(|(version, rest)| {
            let is_hex = |byte: u8| byte.is_ascii_hexdigit();
            !version.is_empty()
                && version.bytes().all(is_hex)
                && !rest.is_empty()
                && rest.bytes().all(|byte| byte == b':' || is_plain(byte))
        })
    };
    text.parse::<Ipv6Addr>().is_ok() || text.strip_prefix(['v', 'V']).is_some_and(later)
}

/// A registered name or an IPv4 address, in which a percent sign begins an encoded byte.
fn is_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [byte, after @ ..] = rest {
        rest = match (*byte, after) {
            (b'%', [high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                after
            }
            (byte, after) if is_plain(byte) => after,
            _ => return false,
        };
    }
    true
}

/// A byte that stands for itself in a host: unreserved, or one of the sub-delimiters.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

/// `X-Request-Timeout-Ms`: whole milliseconds, at least one.
pub fn timeout_ms(value: &[u8]) -> Option<Duration> {
    digits(value)
        .filter(|&millis| millis > 0)
        .map(Duration::from_millis)
}

/// `x-envoy-expected-rq-timeout-ms`: whole milliseconds, where zero means that Envoy sets no limit.
pub fn envoy_timeout_ms(value: &[u8]) -> Option<Duration> {
    digits(value).map(|millis| match millis {
        0 => Duration::MAX,
        _ => Duration::from_millis(millis),
    })
}

/// `grpc-timeout`: one to eight digits and a unit, at least one of it.
pub fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (&unit, number) = value.split_last()?;
    if number.len() > 8 {
        return None;
    }
    let number = digits(number).filter(|&number| number > 0)?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// The token of `Authorization: Bearer <token>`.
pub fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    let token = token.trim_ascii();
    let visible = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
    if scheme.eq_ignore_ascii_case(b"bearer ") && visible {
        std::str::from_utf8(token).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_kept_only_if_they_are_short_and_harmless() {
        assert_eq!(request_id(b"abc-123"), Some("abc-123"));
        assert_eq!(request_id(b"a/b+c=.~:_"), Some("a/b+c=.~:_"));
        assert_eq!(request_id(b""), None);
        assert_eq!(request_id(b"a b"), None);
        assert_eq!(request_id(b"a\"b"), None);
        assert_eq!(request_id("é".as_bytes()), None);
        assert!(request_id(&[b'a'; 128]).is_some());
        assert!(request_id(&[b'a'; 129]).is_none());
    }

    #[test]
    fn json_is_recognised_with_parameters_suffixes_and_in_any_case() {
        for json in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;v=1",
            "application/problem+json",
            "application/vnd.api+JSON ; x=y",
        ] {
            assert_eq!(content_type(json.as_bytes()), ContentType::Json, "{json}");
        }
        for other in [
            "",
            "text/plain",
            "application/jsonl",
            "text/json",
            "application/+json",
            "application/x-www-form-urlencoded",
            "json",
        ] {
            assert_eq!(
                content_type(other.as_bytes()),
                ContentType::Other,
                "{other}"
            );
        }
    }

    #[test]
    fn lists_ignore_white_space_and_empty_elements() {
        let all: Vec<_> = list(b" close ,, keep-alive\t,").collect();
        assert_eq!(all, [&b"close"[..], b"keep-alive"]);
        assert_eq!(list(b"").count(), 0);
    }

    #[test]
    fn digits_are_digits() {
        assert_eq!(digits(b"18"), Some(18));
        assert_eq!(digits(b"0018"), Some(18));
        assert_eq!(digits(b"18446744073709551615"), Some(u64::MAX));
        for bad in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "0x1",
            "1_0",
            "18446744073709551616",
        ] {
            assert_eq!(digits(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn hosts_have_a_name_and_perhaps_a_port() {
        for good in [
            "",
            "a",
            "a.b:80",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:80",
            "a:",
            "x_y",
            "a%20b",
            "[2001:db8::7]:",
            "[v1.x:y]",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "a b", "a/b", "a:b", "a@b", "a:b@c:1", "@", ":80", ":", "::1", "[::1", "::1]", "[]",
            "[]:80", "[a]", "[::1]x", "[v.x]", "[v1.]", "a[b]", "a]b", "a:80:80", "a:65536",
            "a:+1", "a%2", "a%zz", "%", "a\"", "é", "a?b", "a#b", "a\\b",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
        assert!(!is_authority(b""), "a URL names a host");
    }

    #[test]
    fn timeouts_are_read_in_their_own_units() {
        assert_eq!(timeout_ms(b"250"), Some(Duration::from_millis(250)));
        assert_eq!(timeout_ms(b"0"), None);
        assert_eq!(timeout_ms(b"soon"), None);
        assert_eq!(envoy_timeout_ms(b"0"), Some(Duration::MAX));
        assert_eq!(envoy_timeout_ms(b"15000"), Some(Duration::from_secs(15)));
        assert_eq!(envoy_timeout_ms(b"1.5"), None);
        assert_eq!(grpc_timeout(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(grpc_timeout(b"1H"), Some(Duration::from_secs(3_600)));
        assert_eq!(grpc_timeout(b"2M"), Some(Duration::from_secs(120)));
        assert_eq!(grpc_timeout(b"3S"), Some(Duration::from_secs(3)));
        assert_eq!(grpc_timeout(b"4u"), Some(Duration::from_micros(4)));
        assert_eq!(grpc_timeout(b"5n"), Some(Duration::from_nanos(5)));
        for bad in [
            "",
            "m",
            "100",
            "0m",
            "123456789m",
            "1.5S",
            "-1S",
            "1s",
            "1 S",
        ] {
            assert_eq!(grpc_timeout(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn bearer_tokens_are_one_visible_word() {
        assert_eq!(bearer(b"Bearer abc"), Some("abc"));
        assert_eq!(bearer(b"bearer   abc"), Some("abc"));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Basic abc",
            "Bearer a b",
            "Bearerabc",
        ] {
            assert_eq!(bearer(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
