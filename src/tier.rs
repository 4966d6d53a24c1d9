//! The three classes of traffic.
//!
//! A tier decides who is served first and who is shed first, nothing else. Every per-tier table of the server is
//! indexed by [`Tier::index`], so the order of [`Tier::ALL`] is the order of priority everywhere.

use std::fmt;
use std::str::FromStr;

/// A class of traffic, highest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Served first, shed last.
    Enterprise,
    /// Served after enterprise.
    Paid,
    /// Served with what is left, shed first.
    Free,
}

impl Tier {
    /// Number of tiers.
    pub const COUNT: usize = 3;
    /// All tiers, in order of priority.
    pub const ALL: [Tier; Tier::COUNT] = [Tier::Enterprise, Tier::Paid, Tier::Free];

    /// Position in [`Tier::ALL`]: 0 is the highest priority.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name used on the wire, in metrics and in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Enterprise => "enterprise",
            Tier::Paid => "paid",
            Tier::Free => "free",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such tier; the tiers are enterprise, paid and free")]
pub struct UnknownTier;

impl FromStr for Tier {
    type Err = UnknownTier;

    /// Case does not matter: gateways capitalise as they like.
    fn from_str(text: &str) -> Result<Self, UnknownTier> {
        Tier::ALL
            .into_iter()
            .find(|tier| tier.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownTier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_reads_back_from_its_name_in_any_case() {
        for tier in Tier::ALL {
            assert_eq!(tier.name().parse(), Ok(tier));
            assert_eq!(tier.name().to_uppercase().parse(), Ok(tier));
            assert_eq!(Tier::ALL[tier.index()], tier);
        }
        assert_eq!("platinum".parse::<Tier>(), Err(UnknownTier));
        assert_eq!("".parse::<Tier>(), Err(UnknownTier));
    }
}
