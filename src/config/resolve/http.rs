//! How callers are served: limits, time-outs, who they are.

use std::path::PathBuf;
use std::time::Duration;

use super::Check;
use crate::admission::DefaultDeadline;
use crate::config::memory;
use crate::config::raw::{Given, value_or};
use crate::config::room::Room;
use crate::config::units::grouped;
use crate::config::values::{Auto, IdentityKind};
use crate::config::{HttpConfig, HttpLimits, HttpTimeouts, Identity, Machine, defaults, keys};

impl Check<'_> {
    pub(super) fn http(&mut self, machine: &Machine, room: &Room) -> HttpConfig {
        let raw = self.raw;
        HttpConfig {
            limits: self.limits(machine),
            timeouts: self.timeouts(),
            max_connections: self.max_connections(room),
            model: self.model(),
            default_tier: value_or(&raw.default_tier, defaults::DEFAULT_TIER),
            deadline: self.deadline(),
        }
    }

    fn deadline(&mut self) -> DefaultDeadline {
        let least = Duration::from_millis(defaults::DEADLINE_MS.default.into());
        self.millis_or_auto(&self.raw.deadline_ms, defaults::DEADLINE_MS)
            .map_or(DefaultDeadline::AtLeast(least), DefaultDeadline::Fixed)
    }

    fn limits(&mut self, machine: &Machine) -> HttpLimits {
        let raw = &self.raw.limits;
        let body = self.count(&raw.body_max_bytes, defaults::BODY_MAX_BYTES);
        let memory = memory::request_memory(self.raw, machine, body, &mut self.refusals);
        HttpLimits {
            body_max_bytes: body,
            request_memory_bytes: memory,
            input_max_bytes: self.count(&raw.input_max_bytes, defaults::INPUT_MAX_BYTES),
            output_max_bytes: self.count(&raw.output_max_bytes, defaults::OUTPUT_MAX_BYTES),
            header_max_bytes: self.count(&raw.header_max_bytes, defaults::HEADER_MAX_BYTES),
            header_max_count: self.count(&raw.header_max_count, defaults::HEADER_MAX_COUNT),
            target_max_bytes: self.count(&raw.target_max_bytes, defaults::TARGET_MAX_BYTES),
        }
    }

    fn timeouts(&mut self) -> HttpTimeouts {
        let raw = &self.raw.timeouts;
        HttpTimeouts {
            header: self.millis(&raw.header_ms, defaults::HEADER_TIMEOUT_MS),
            body: self.millis(&raw.body_ms, defaults::BODY_TIMEOUT_MS),
            idle: self.millis(&raw.idle_ms, defaults::IDLE_TIMEOUT_MS),
            write: self.millis(&raw.write_ms, defaults::WRITE_TIMEOUT_MS),
        }
    }

    /// Left to the server, as many as there is room for, up to the default. An operator who names a number counts on
    /// it, so that one is taken or refused, never lowered.
    fn max_connections(&mut self, room: &Room) -> usize {
        let given = &self.raw.max_connections;
        let Room {
            connections: most,
            because,
        } = room;
        if *most == 0 {
            let problem = format!("can't even be 1 ({because}): raise that limit");
            self.refuse(keys::MAX_CONNECTIONS, given, &problem);
            return 0;
        }
        let Auto::Set(wanted) = value_or(given, Auto::Auto) else {
            return defaults::MAX_CONNECTIONS.min(*most);
        };
        match usize::try_from(wanted) {
            Ok(wanted) if (1..=*most).contains(&wanted) => wanted,
            _ => {
                let most = grouped(*most as u64);
                let range = format!("from 1 to {most} here ({because}), or auto");
                let problem = format!("is {wanted}; it must be {range}");
                self.refuse(keys::MAX_CONNECTIONS, given, &problem);
                0
            }
        }
    }

    fn model(&mut self) -> String {
        let given = &self.raw.model;
        let model = value_or(given, defaults::MODEL.to_owned());
        let fits = (1..=defaults::MODEL_NAME_MAX_BYTES).contains(&model.len());
        if !fits || model.chars().any(char::is_control) {
            let most = defaults::MODEL_NAME_MAX_BYTES;
            let rule = format!("1 to {most} bytes and no control characters");
            let problem = format!("is {model:?}; it must have {rule} (default: llm-v1)");
            self.refuse(keys::MODEL, given, &problem);
        }
        model
    }

    /// A key file that nobody reads would leave the door open behind an operator's back, so it is taken only where it
    /// is clear what was meant. An empty path is none.
    pub(super) fn identity(&mut self) -> Identity {
        let raw = self.raw;
        let named = |given: &&Given<PathBuf>| !given.value.as_os_str().is_empty();
        let file = raw.keys_file.as_ref().filter(named);
        match (value_or(&raw.identity, defaults::IDENTITY), file) {
            (IdentityKind::Keys, Some(file)) => return Identity::Keys(raw.located(file)),
            (IdentityKind::Keys, None) => {
                let problem =
                    "is keys, but no file with keys is named: give it with --keys FILE (keys_file)";
                self.refuse(keys::IDENTITY, &raw.identity, problem);
            }
            (IdentityKind::Trusted, Some(_)) if raw.identity.is_none() => {
                let problem = "is given, but every caller's X-Tier would be believed: add --identity keys \
                               (identity = \"keys\"), or trusted if that is meant";
                self.refuse(keys::KEYS_FILE, &raw.keys_file, problem);
            }
            (IdentityKind::Trusted, _) => {}
        }
        Identity::Trusted
    }
}
