//! The chunked transfer coding, taken apart as it arrives (RFC 9112, section 7.1). Pure: bytes in, body out.
//!
//! The connection loop feeds it whatever the socket gives, split anywhere. Extensions are skipped and trailers
//! dropped, both within bounds: a sender could otherwise keep a connection busy for ever without sending a body.
//! Lines end with CR LF and nothing else, sizes are hexadecimal digits and nothing else, because the end of the body
//! decides where the next request begins.

use super::reject::Rejection;

/// Bytes of one size line, extensions included.
const SIZE_LINE_BYTES_MAX: usize = 256;

/// Bytes of everything in a body that is not data: size lines, extensions, trailers. Generous enough for a body of
/// 1 MiB in chunks of a few hundred bytes.
const OVERHEAD_BYTES_MAX: usize = 64 * 1024;

/// Where in the coding the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the digits of a chunk's size; how many have been seen.
    Size(u8),
    /// White space after the size.
    SizeEnd,
    /// In an extension.
    Extension,
    /// After the CR of a size line.
    SizeLf,
    /// In the data, so many bytes of which are still to come.
    Data,
    /// After the data of a chunk.
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the line that ends the body.
    TrailerStart,
    /// In the name of a trailer.
    TrailerName,
    /// In its value.
    Trailer,
    TrailerLf,
    /// After the CR of the empty line.
    EndLf,
    Done,
}

/// Decodes one chunked body.
#[derive(Debug)]
pub struct Decoder {
    place: Place,
    /// The size being read, then what is left of the chunk.
    remaining: u64,
    body_bytes: u64,
    body_bytes_max: usize,
    line_bytes: usize,
    overhead_bytes: usize,
}

impl Decoder {
    /// A decoder that refuses bodies of more than `body_bytes_max` bytes.
    pub fn new(body_bytes_max: usize) -> Decoder {
        Decoder {
            place: Place::Size(0),
            remaining: 0,
            body_bytes: 0,
            body_bytes_max,
            line_bytes: 0,
            overhead_bytes: 0,
        }
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// Takes bytes off `coded`, appends the data among them to `body` and returns how many it took: all of them, or
    /// fewer if the body ended before. The caller may empty `body` between calls, if it has no use for the data.
    ///
    /// # Errors
    ///
    /// `Malformed` or `BodyTooLarge`; the connection cannot be read on after either.
    pub fn decode(&mut self, coded: &[u8], body: &mut Vec<u8>) -> Result<usize, Rejection> {
        let mut taken = 0;
        while taken < coded.len() && self.place != Place::Done {
            taken += match self.place {
                Place::Data => self.take_data(&coded[taken..], body)?,
                _ => self.take_byte(coded[taken])?,
            };
        }
        Ok(taken)
    }

    fn take_data(&mut self, coded: &[u8], body: &mut Vec<u8>) -> Result<usize, Rejection> {
        let wanted = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        let taken = wanted.min(coded.len());
        body.extend_from_slice(&coded[..taken]);
        self.remaining -= taken as u64;
        if self.remaining == 0 {
            self.place = Place::DataCr;
        }
        Ok(taken)
    }

    /// Takes one byte of the coding itself; always consumes it.
    fn take_byte(&mut self, byte: u8) -> Result<usize, Rejection> {
        self.count_overhead()?;
        self.place = match (self.place, byte) {
            (Place::Size(digits), _) if byte.is_ascii_hexdigit() => {
                self.take_digit(digits, byte)?
            }
            (Place::Size(0), _) => {
                return Err(Rejection::Malformed(
                    "a chunk size is not a hexadecimal number",
                ));
            }
            (Place::Size(_) | Place::SizeEnd | Place::Extension, b'\r') => Place::SizeLf,
            (Place::Size(_) | Place::SizeEnd, b';') => Place::Extension,
            (Place::Size(_) | Place::SizeEnd, b' ' | b'\t') => Place::SizeEnd,
            (Place::Size(_), _) => {
                return Err(Rejection::Malformed(
                    "a chunk size is not a hexadecimal number",
                ));
            }
            (Place::Extension, b'\t' | b' '..=b'~' | 0x80..) => Place::Extension,
            (Place::SizeLf, b'\n') => self.start_chunk()?,
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => self.next_line(Place::Size(0)),
            (Place::TrailerStart, b'\r') => Place::EndLf,
            (Place::TrailerName, b':') => Place::Trailer,
            (Place::TrailerStart | Place::TrailerName, byte) if is_token(byte) => {
                Place::TrailerName
            }
            (Place::Trailer, b'\r') => Place::TrailerLf,
            (Place::Trailer, b'\t' | b' '..=b'~' | 0x80..) => Place::Trailer,
            (Place::TrailerLf, b'\n') => self.next_line(Place::TrailerStart),
            (Place::EndLf, b'\n') => Place::Done,
            _ => {
                return Err(Rejection::Malformed(
                    "the chunked coding of the body is broken",
                ));
            }
        };
        Ok(1)
    }

    fn take_digit(&mut self, digits: u8, byte: u8) -> Result<Place, Rejection> {
        let digit = (byte as char).to_digit(16).unwrap_or_default();
        // Sixteen digits fill 64 bits; leading zeros beyond them have no honest use.
        if digits == 16 {
            return Err(Rejection::Malformed("a chunk size has more than 16 digits"));
        }
        self.remaining = (self.remaining << 4) | u64::from(digit);
        Ok(Place::Size(digits + 1))
    }

    fn start_chunk(&mut self) -> Result<Place, Rejection> {
        if self.remaining == 0 {
            return Ok(self.next_line(Place::TrailerStart));
        }
        self.body_bytes = self.body_bytes.saturating_add(self.remaining);
        if self.body_bytes > self.body_bytes_max as u64 {
            return Err(Rejection::BodyTooLarge {
                limit_bytes: self.body_bytes_max,
            });
        }
        Ok(self.next_line(Place::Data))
    }

    fn next_line(&mut self, place: Place) -> Place {
        self.line_bytes = 0;
        place
    }

    fn count_overhead(&mut self) -> Result<(), Rejection> {
        self.line_bytes += 1;
        self.overhead_bytes += 1;
        let in_trailer = matches!(
            self.place,
            Place::TrailerName | Place::Trailer | Place::TrailerLf
        );
        if self.overhead_bytes > OVERHEAD_BYTES_MAX
            || (self.line_bytes > SIZE_LINE_BYTES_MAX && !in_trailer)
        {
            return Err(Rejection::Malformed(
                "the chunked coding has too much around the data: sizes, extensions or trailers",
            ));
        }
        Ok(())
    }
}

/// Whether a header's name may contain `byte` (RFC 9110, token).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 4_096;

    /// Decodes in pieces of `step` bytes; returns the body and what was left over.
    fn decode_in_steps(coded: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), Rejection> {
        let mut decoder = Decoder::new(LIMIT);
        let (mut body, mut taken) = (Vec::new(), 0);
        for piece in coded.chunks(step) {
            taken += decoder.decode(piece, &mut body)?;
            if decoder.is_done() {
                break;
            }
        }
        Ok((body, coded.len() - taken, decoder.is_done()))
    }

    fn decoded(coded: &[u8]) -> Result<(Vec<u8>, usize, bool), Rejection> {
        decode_in_steps(coded, coded.len().max(1))
    }

    /// The obvious decoder for whole, valid bodies without extensions and trailers.
    fn naive(coded: &[u8]) -> Vec<u8> {
        let text = std::str::from_utf8(coded).expect("ASCII");
        let (size, rest) = text.split_once("\r\n").expect("a size line");
        let size = usize::from_str_radix(size, 16).expect("hex");
        if size == 0 {
            return Vec::new();
        }
        let mut body = rest.as_bytes()[..size].to_vec();
        body.extend(naive(&rest.as_bytes()[size + 2..]));
        body
    }

    fn code(pieces: &[String]) -> Vec<u8> {
        let mut coded = String::new();
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            coded += &format!("{:x}\r\n{piece}\r\n", piece.len());
        }
        (coded + "0\r\n\r\n").into_bytes()
    }

    #[test]
    fn extensions_are_skipped_and_trailers_dropped() {
        let coded = b"5;a=\"b c\"\r\nhello\r\n1 \r\n!\r\n000;x\r\nX-A: b\r\nX-B:\r\n\r\nGET";
        assert_eq!(decoded(coded), Ok((b"hello!".to_vec(), 3, true)));
    }

    #[test]
    fn anything_odd_is_refused() {
        for bad in [
            "zz\r\nhello\r\n0\r\n\r\n",
            "\r\nhello",
            ";x\r\n",
            "-5\r\nhello",
            "+5\r\nhello",
            "0x5\r\nhello",
            " 5\r\nhello",
            "5\nhello",
            "5\r\rhello",
            "5;a\rb\r\n",
            "5;a\nb\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "0\r\n X: folded\r\n\r\n",
            "0\r\nX: a\nY: b\r\n\r\n",
            "0\r\n\r\r",
            "10000000000000000\r\n",
            "00000000000000005\r\n",
        ] {
            let rejection = decoded(bad.as_bytes()).expect_err(bad);
            assert_eq!(
                (rejection.status(), rejection.closes()),
                (400, true),
                "{bad:?}"
            );
            assert_eq!(
                decode_in_steps(bad.as_bytes(), 1).expect_err(bad),
                rejection
            );
        }
    }

    #[test]
    fn a_body_over_the_limit_is_refused_at_its_size_line() {
        let fits = format!("{LIMIT:x}\r\n");
        assert_eq!(decoded(fits.as_bytes()), Ok((vec![], 0, false)));
        let over = format!("{:x}\r\n", LIMIT + 1);
        assert_eq!(
            decoded(over.as_bytes()).expect_err("too large").status(),
            413
        );
        let huge = "ffffffffffffffff\r\n";
        assert_eq!(
            decoded(huge.as_bytes()).expect_err("too large").status(),
            413
        );
        let second = format!("1\r\na\r\n{LIMIT:x}\r\n");
        assert_eq!(
            decoded(second.as_bytes()).expect_err("too large").status(),
            413
        );
    }

    #[test]
    fn what_is_not_data_is_bounded() {
        let line = format!("1;{}\r\na\r\n", "x".repeat(SIZE_LINE_BYTES_MAX));
        assert_eq!(
            decoded(line.as_bytes()).expect_err("long line").status(),
            400
        );
        let trailers = format!("0\r\nX: {}", "x".repeat(OVERHEAD_BYTES_MAX));
        assert_eq!(
            decoded(trailers.as_bytes())
                .expect_err("long trailer")
                .status(),
            400
        );
        let many = "1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\na\r\n".repeat(LIMIT);
        assert!(decoded(many.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_decoder_however_it_is_split(
            pieces in proptest::collection::vec("[ -~]{0,40}", 0..12),
            step in 1usize..60,
            tail in "[A-Z]{0,10}",
        ) {
            let mut coded = code(&pieces);
            let expected = naive(&coded);
            coded.extend_from_slice(tail.as_bytes());
            let mut decoder = Decoder::new(LIMIT);
            let (mut body, mut taken) = (Vec::new(), 0);
            for piece in coded.chunks(step) {
                taken += decoder.decode(piece, &mut body).expect("valid");
            }
            prop_assert!(decoder.is_done());
            prop_assert_eq!(coded.len() - taken, tail.len());
            prop_assert_eq!(body, expected);
        }

        #[test]
        fn arbitrary_bytes_give_the_same_verdict_in_one_piece_and_in_many(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), any::<u8>()], 0..80),
        ) {
            prop_assert_eq!(decode_in_steps(&bytes, 1), decoded(&bytes));
        }
    }
}
