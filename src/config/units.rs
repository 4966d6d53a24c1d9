//! Numbers as people read them, for the start-up screen, `funicular check` and messages.

use std::time::Duration;

/// `number` with its thousands set apart: `65,536`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes in the largest binary unit that leaves it whole, or else to one decimal: `64 KiB`, `5.7 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let power = (1..UNITS.len())
        .rev()
        .find(|power| count >> (10 * power) > 0)
        .unwrap_or(0);
    let unit = 1_u64 << (10 * power);
    if count.is_multiple_of(unit) {
        return format!("{} {}", grouped(count / unit), UNITS[power]);
    }
    format!("{:.1} {}", count as f64 / unit as f64, UNITS[power])
}

/// A span of time in seconds where that is whole, else in milliseconds: `75 s`, `100 ms`.
pub fn span(time: Duration) -> String {
    if time.subsec_nanos() == 0 && !time.is_zero() {
        return format!("{} s", grouped(time.as_secs()));
    }
    let millis = time.as_secs_f64() * 1e3;
    if millis.fract() == 0.0 {
        return format!("{} ms", grouped(millis as u64));
    }
    format!("{millis} ms")
}

/// A number of things: `1 connection`, `1,234 connections`.
pub fn counted(number: u64, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {thing}{ending}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (65_536, "65,536"),
            (1_234_567, "1,234,567"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn bytes_come_in_the_unit_that_reads_best() {
        let cases = [
            (0, "0 bytes"),
            (1_023, "1,023 bytes"),
            (1 << 16, "64 KiB"),
            (1 << 20, "1 MiB"),
            (1_536, "1.5 KiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(0, "run"), "0 runs");
        assert_eq!(counted(1, "run"), "1 run");
        assert_eq!(counted(2_000, "run"), "2,000 runs");
    }

    #[test]
    fn spans_come_in_seconds_where_they_are_whole() {
        assert_eq!(span(Duration::from_secs(75)), "75 s");
        assert_eq!(span(Duration::from_millis(1_500)), "1,500 ms");
        assert_eq!(span(Duration::from_micros(2_500)), "2.5 ms");
        assert_eq!(span(Duration::ZERO), "0 ms");
    }
}
