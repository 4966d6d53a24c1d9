//! Numbers as a reader wants them: few digits, thousands set apart, always the same way.

/// `value` with three significant digits and thousands separators; `–` where there is no number.
///
/// From 100 up no decimals are shown, so that 12,345 stays 12,345: integers are exact, fractions are rounded.
pub fn short(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    match magnitude {
        0.0 => "0".to_owned(),
        m if m < 0.001 => "< 0.001".to_owned(),
        m if m < 0.995 => trimmed(value, 3),
        m if m < 9.995 => trimmed(value, 2),
        m if m < 99.95 => trimmed(value, 1),
        _ => grouped(value),
    }
}

/// `value` rounded to an integer, with a comma between thousands.
pub fn grouped(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0.0 && digits != "0" {
        out.push('−');
    }
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A count, with a comma between thousands.
pub fn count(value: u64) -> String {
    grouped(value as f64)
}

/// A count with its noun: `1 GPU`, `14 GPUs`, `2 batches`.
pub fn plural(value: u64, noun: &str) -> String {
    let ending = match value {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(value))
}

/// `part` of `whole` as a percentage such as `0.02 %`; tiny shares never read as zero.
pub fn share(part: f64, whole: f64) -> String {
    if whole <= 0.0 || !part.is_finite() {
        return "–".to_owned();
    }
    percent(part / whole)
}

/// A fraction (0.25) as a percentage (`25 %`).
pub fn percent(fraction: f64) -> String {
    if !fraction.is_finite() {
        return "–".to_owned();
    }
    let value = fraction * 100.0;
    // 99.98 % of good answers must not read as "100 %": a complement this small is the interesting part.
    if (99.5..100.0).contains(&value) {
        let shown = trimmed(value, 2);
        return if shown == "100" {
            "> 99.99 %".to_owned()
        } else {
            format!("{shown} %")
        };
    }
    match value {
        v if v > 0.0 && v < 0.01 => "< 0.01 %".to_owned(),
        v if v < 1.0 => format!("{} %", trimmed(v, 2)),
        v if v < 10.0 => format!("{} %", trimmed(v, 1)),
        v => format!("{v:.0} %"),
    }
}

/// Seconds as the length of a run: `45 s`, `2 min`, `2 min 30 s`, `1 h 5 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "–".to_owned();
    }
    if seconds < 90.0 {
        return format!("{} s", short(seconds));
    }
    let whole = seconds.round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    let mut parts = Vec::new();
    for (amount, unit) in [(hours, "h"), (minutes, "min"), (rest, "s")] {
        if amount > 0 {
            parts.push(format!("{amount} {unit}"));
        }
    }
    parts.join(" ")
}

/// A time given in milliseconds, in µs where it is too short for them: `4.2 µs`, `120 ms`.
pub fn time(ms: f64) -> String {
    if ms != 0.0 && ms.abs() < 0.1 {
        format!("{} µs", short(ms * 1e3))
    } else {
        format!("{} ms", short(ms))
    }
}

/// A ratio such as `×1.25`; `–` where the base is zero.
pub fn ratio(value: f64, base: f64) -> String {
    if base == 0.0 || !(value / base).is_finite() {
        return "–".to_owned();
    }
    let ratio = value / base;
    if ratio < 10.0 {
        format!("×{ratio:.2}")
    } else {
        format!("×{}", short(ratio))
    }
}

/// At most `decimals` decimals, without trailing zeros.
fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0')
        .trim_end_matches('.')
        .replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.0004, "< 0.001"),
            (0.1234, "0.123"),
            (1.5, "1.5"),
            (9.999, "10"),
            (12.34, "12.3"),
            (112.6, "113"),
            (12_345.6, "12,346"),
            (-3.25, "−3.25"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value}");
        }
    }

    #[test]
    fn shares_never_round_to_nothing_or_everything() {
        assert_eq!(share(1.0, 1_000_000.0), "< 0.01 %");
        assert_eq!(share(999_999.0, 1_000_000.0), "> 99.99 %");
        assert_eq!(share(9_997.0, 10_000.0), "99.97 %");
        assert_eq!(share(1.0, 1.0), "100 %");
        assert_eq!(share(0.0, 5.0), "0 %");
        assert_eq!(share(1.0, 0.0), "–");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(grouped(-1234.0), "−1,234");
        assert_eq!(plural(1, "GPU"), "1 GPU");
        assert_eq!(plural(1_000, "batch"), "1,000 batches");
    }

    #[test]
    fn durations_read_like_speech() {
        assert_eq!(duration(45.0), "45 s");
        assert_eq!(duration(120.0), "2 min");
        assert_eq!(duration(3900.0), "1 h 5 min");
    }

    #[test]
    fn short_times_are_in_microseconds() {
        let cases = [
            (0.0, "0 ms"),
            (0.0042, "4.2 µs"),
            (0.1, "0.1 ms"),
            (120.4, "120 ms"),
        ];
        for (ms, text) in cases {
            assert_eq!(time(ms), text, "{ms}");
        }
    }

    #[test]
    fn ratios_need_a_base() {
        assert_eq!(ratio(5.0, 4.0), "×1.25");
        assert_eq!(ratio(5.0, 0.0), "–");
    }
}
