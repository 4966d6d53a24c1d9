//! Reading a condition: metric, filter, comparison, value and unit.

use std::str::FromStr;

use super::{Comparison, Condition, ConditionError, Filter, Metric, Quantity};

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Condition, ConditionError> {
        let shape = || ConditionError::Shape(text.to_owned());
        let filter_end = text.find('}').map_or(0, |at| at + 1);
        let at = filter_end + text[filter_end..].find(['<', '>']).ok_or_else(shape)?;
        let (left, right) = text.split_at(at);
        let (comparison, value) = parse_comparison(right).ok_or_else(shape)?;
        let (name, filter) = match left.trim().split_once('{') {
            None => (left.trim(), ""),
            Some((name, filter)) => (name.trim(), filter.strip_suffix('}').ok_or_else(shape)?),
        };
        let metric = parse_metric(name).ok_or_else(|| ConditionError::Metric(name.to_owned()))?;
        let filter = parse_filter(filter, metric)?;
        let (bound, unit, unit_name) = parse_value(value.trim(), metric.quantity())?;
        if metric.quantity() == Quantity::Share && unit_name.is_empty() {
            check_share(comparison, bound, value)?;
        }
        let text = text.trim().to_owned();
        Ok(Condition {
            text,
            metric,
            filter,
            comparison,
            bound,
            unit,
            unit_name,
        })
    }
}

fn parse_comparison(text: &str) -> Option<(Comparison, &str)> {
    let signs = [
        (">=", Comparison::AtLeast),
        ("<=", Comparison::AtMost),
        (">", Comparison::Above),
        ("<", Comparison::Below),
    ];
    signs
        .into_iter()
        .find_map(|(sign, comparison)| Some((comparison, text.strip_prefix(sign)?)))
}

fn parse_metric(name: &str) -> Option<Metric> {
    if let Some(percentile) = name.strip_prefix('p')
        && let Ok(percentile) = percentile.parse::<f64>()
    {
        return (0.0..=100.0)
            .contains(&percentile)
            .then_some(Metric::Percentile(percentile));
    }
    Some(match name {
        "mean" => Metric::Mean,
        "min" => Metric::Min,
        "max" => Metric::Max,
        "count" => Metric::Count,
        "errors" => Metric::Errors,
        "error_rate" => Metric::ErrorRate,
        "offered" => Metric::Offered,
        "achieved" => Metric::Achieved,
        "achieved_ratio" => Metric::AchievedRatio,
        "late" => Metric::Late,
        "wrong" => Metric::Wrong,
        "server_cpu" => Metric::ServerCpu,
        "server_rss" => Metric::ServerRss,
        "utilisation" => Metric::Utilisation,
        _ => return None,
    })
}

impl Metric {
    fn quantity(self) -> Quantity {
        match self {
            Metric::Percentile(_) | Metric::Mean | Metric::Min | Metric::Max => Quantity::Time,
            Metric::Late | Metric::ServerCpu => Quantity::Time,
            Metric::ErrorRate | Metric::AchievedRatio | Metric::Utilisation => Quantity::Share,
            Metric::ServerRss => Quantity::Bytes,
            Metric::Count | Metric::Errors | Metric::Offered | Metric::Achieved | Metric::Wrong => {
                Quantity::Number
            }
        }
    }

    pub(super) fn is_latency(self) -> bool {
        matches!(
            self,
            Metric::Percentile(_) | Metric::Mean | Metric::Min | Metric::Max
        )
    }

    fn takes(self, key: &str) -> bool {
        match key {
            "tier" => {
                self.is_latency()
                    || matches!(
                        self,
                        Metric::Count | Metric::Errors | Metric::ErrorRate | Metric::Achieved
                    )
            }
            "status" => self.is_latency() || self == Metric::Count,
            "view" => self.is_latency(),
            _ => false,
        }
    }
}

fn parse_filter(text: &str, metric: Metric) -> Result<Filter, ConditionError> {
    let mut filter = Filter::default();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let wrong = || ConditionError::Filter(part.to_owned());
        let (key, value) = part.split_once('=').ok_or_else(wrong)?;
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        match key {
            _ if !metric.takes(key) || value.is_empty() => return Err(wrong()),
            "tier" => filter.tier = Some(value.to_owned()),
            "status" => filter.status = Some(value.to_owned()),
            _ => match value {
                "corrected" => filter.uncorrected = false,
                "uncorrected" => filter.uncorrected = true,
                _ => return Err(wrong()),
            },
        }
    }
    if filter.uncorrected && filter.status.is_some() {
        // Only good answers are kept in both views.
        return Err(ConditionError::Filter(text.to_owned()));
    }
    Ok(filter)
}

/// Refuses a share without % that it can't be above, or that is none: a condition that never holds passes every run.
fn check_share(comparison: Comparison, bound: f64, value: &str) -> Result<(), ConditionError> {
    if bound > 1.0 || (bound == 1.0 && comparison == Comparison::Above) {
        return Err(ConditionError::Share(value.trim().to_owned()));
    }
    Ok(())
}

fn parse_value(text: &str, quantity: Quantity) -> Result<(f64, f64, String), ConditionError> {
    let wrong = || ConditionError::Value(text.to_owned());
    let split = text
        .find(|char: char| !(char.is_ascii_digit() || char == '.'))
        .unwrap_or(text.len());
    let (number, name) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let name = name.trim();
    let unit = match (quantity, name) {
        (Quantity::Time, "s") => 1e9,
        (Quantity::Time, "ms") => 1e6,
        (Quantity::Time, "us" | "µs") => 1e3,
        (Quantity::Share, "%") => 0.01,
        (Quantity::Share | Quantity::Number | Quantity::Bytes, "") => 1.0,
        (Quantity::Time, "") => return Err(ConditionError::Unit(text.to_owned())),
        (Quantity::Bytes, "KiB") => 1024.0,
        (Quantity::Bytes, "MiB") => 1024.0 * 1024.0,
        (Quantity::Bytes, "GiB") => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    Ok((number * unit, unit, name.to_owned()))
}
