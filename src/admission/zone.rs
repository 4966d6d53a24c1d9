//! Zones: how deep the backlog is, and what share of each tier a zone lets in.
//!
//! Depth is measured in seconds of capacity, so that the zones follow the number of healthy GPUs the instant it
//! changes. But between two launches a backlog of one batch per GPU gathers by itself, however light the load: with
//! batches of 2 s that is 2 s of capacity, and thresholds below it would shed from a server at half load; with
//! batches of one ticket, a limit of one second would be less than a single ticket. So yellow never begins below
//! **two batch times**: one batch per GPU is the natural tide, a second one may wait. Where that raises it, red and
//! limit rise in proportion (the defaults are 2, 5 and 10 batch times of 100 ms, so this changes nothing for
//! batches up to 100 ms).

use crate::tier::Tier;

/// How deep the backlog is, in seconds of capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zone {
    /// Everybody is let in.
    Green,
    /// The free tier is let in with a falling share.
    Yellow,
    /// No free requests; the paid tier is let in with a falling share.
    Red,
    /// Nobody is let in.
    Limit,
}

impl Zone {
    /// The name used in `/status` and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Zone::Green => "green",
            Zone::Yellow => "yellow",
            Zone::Red => "red",
            Zone::Limit => "limit",
        }
    }
}

/// Where the zones begin, in seconds of capacity, after the stretch for long batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    pub(super) yellow: f64,
    pub(super) red: f64,
    pub(super) limit: f64,
}

impl Thresholds {
    /// The given thresholds for batches of `batch_seconds`: see the module's description.
    pub(super) fn stretched(yellow: f64, red: f64, limit: f64, batch_seconds: f64) -> Thresholds {
        // `max` drops the NaN of 0/0, and a stretch of a zero threshold leaves it at zero.
        let stretch = if yellow > 0.0 {
            (2.0 * batch_seconds / yellow).max(1.0)
        } else {
            1.0
        };
        Thresholds {
            yellow: yellow * stretch,
            red: red * stretch,
            limit: limit * stretch,
        }
    }

    /// The zone at `depth` seconds of backlog.
    pub(super) fn zone(&self, depth: f64) -> Zone {
        if depth < self.yellow {
            Zone::Green
        } else if depth < self.red {
            Zone::Yellow
        } else if depth < self.limit {
            Zone::Red
        } else {
            Zone::Limit
        }
    }

    /// The share of `tier` that is let in at `depth`: 1 is everybody, 0 nobody.
    pub(super) fn share(&self, tier: Tier, depth: f64) -> f64 {
        match (self.zone(depth), tier) {
            (Zone::Green, _)
            | (Zone::Yellow, Tier::Enterprise | Tier::Paid)
            | (Zone::Red, Tier::Enterprise) => 1.0,
            // Both denominators are above zero: depth is at or above one end and below the other.
            (Zone::Yellow, Tier::Free) => (self.red - depth) / (self.red - self.yellow),
            (Zone::Red, Tier::Paid) => (self.limit - depth) / (self.limit - self.red),
            (Zone::Red, Tier::Free) | (Zone::Limit, _) => 0.0,
        }
    }

    /// The depth below which a request of `tier` that `zone` refused can hope to be let in.
    pub(super) fn below(&self, zone: Zone, tier: Tier) -> f64 {
        match (zone, tier) {
            (Zone::Green | Zone::Yellow, _) => self.yellow,
            (Zone::Red, _) | (Zone::Limit, Tier::Free) => self.red,
            (Zone::Limit, Tier::Enterprise | Tier::Paid) => self.limit,
        }
    }
}
