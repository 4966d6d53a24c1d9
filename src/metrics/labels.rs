//! The words that label values are made of: why something was shed, abandoned or launched, how a batch ended, and the
//! stages of a ticket's time line.
//!
//! They are enums, so that every combination has an index into a table of atomics and recording looks nothing up, and
//! so that the set is bounded by the type. `name()` is the word on the wire, for the problem document and the log too.

/// Declares an enum of label values with `COUNT`, `ALL`, `index` and `name`.
macro_rules! label_values {
    ($(#[$meta:meta])* $name:ident { $($(#[$value_meta:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $name {
            /// Every value, in the order of [`Self::index`].
            pub const ALL: &'static [$name] = &[$($name::$value),+];
            /// Number of values.
            pub const COUNT: usize = Self::ALL.len();

            /// Position in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The word used in metrics, problem documents and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }
        }
    };
}

label_values! {
    /// A stretch of a ticket's own time line. They follow one another, so their means add up to the mean latency.
    Stage {
        /// Reading the rest of the request and parsing it.
        Parse = "parse",
        /// Waiting while no GPU was free.
        Queue = "queue",
        /// Waiting although a GPU was free, for a fuller batch.
        Hold = "hold",
        /// Copying the batch into the GPU's buffer, and waiting there for the launch.
        Stage = "stage",
        /// Running.
        Execute = "execute",
        /// From the batch's completion to the waking of this ticket's handler.
        Demux = "demux",
        /// Writing the answer.
        Write = "write",
    }
}

label_values! {
    /// Why a request was refused.
    ShedReason {
        /// The backlog is in the yellow zone and this tier's share of it is used up (429).
        ZoneYellow = "zone_yellow",
        /// The backlog is in the red zone and does not let this tier in, or only a share of it (429).
        ZoneRed = "zone_red",
        /// The backlog is at its limit: nobody is let in (429).
        Limit = "limit",
        /// The tier's queue is full (429).
        QueueFull = "queue_full",
        /// The key's own rate limit (429).
        RateLimit = "rate_limit",
        /// It could not have met its deadline or the target latency (429).
        Infeasible = "infeasible",
        /// The caller asks for less time than a batch takes (429); it would not be let in at any other time either.
        DeadlineTooShort = "deadline_too_short",
        /// It was admitted, and while it waited it became clear that it can't meet its deadline (429).
        Rejudged = "rejudged",
        /// No GPU is healthy (503).
        NoGpu = "no_gpu",
        /// The server is draining (503).
        Draining = "draining",
        /// All requests together hold as much memory as they may (503).
        Memory = "memory",
    }
}

label_values! {
    /// Why an admitted ticket was given up.
    Abandonment {
        /// The caller left while the ticket waited (499); it took no batch slot.
        Gone = "gone",
        /// The caller left while its batch ran (499).
        GoneRunning = "gone_running",
        /// The deadline passed while the ticket waited (504).
        Expired = "expired",
        /// The deadline passed while its batch ran (504).
        ExpiredRunning = "expired_running",
        /// The last healthy GPU went down while the ticket waited (503).
        NoGpu = "no_gpu",
        /// The second attempt failed too (503).
        RetryFailed = "retry_failed",
        /// The search for bad inputs was over its budget or had no time left (503).
        SearchStopped = "search_stopped",
        /// Still unanswered when the grace period of the drain ended (503).
        Drained = "drained",
        /// Dropped unresolved: a bug of ours (500).
        Dropped = "dropped",
    }
}

label_values! {
    /// What made a batch leave.
    LaunchReason {
        /// It held `batch_max` tickets.
        Full = "full",
        /// Its oldest ticket had waited `hold_max`.
        Hold = "hold",
        /// It held enough for the gap that launching it would leave.
        Paced = "paced",
        /// It came in whole, from a server that this worker runs batches for.
        Whole = "whole",
        /// Full, and bound while the batch before it still ran.
        Ahead = "ahead",
        /// A batch of retried tickets.
        Retry = "retry",
        /// A run of the search for bad inputs.
        Search = "search",
        /// A canary, or a probe that refreshes the batch time.
        Probe = "probe",
    }
}

label_values! {
    /// How a batch ended.
    BatchOutcome {
        /// With an output for every input.
        Done = "done",
        /// The batch function raised, or gave the wrong number of outputs; the device is fine.
        Raised = "raised",
        /// Our side failed: staging, launching or a panic.
        Failed = "failed",
        /// The device or its process is gone.
        Lost = "lost",
        /// Not within the batch time-out.
        TimedOut = "timeout",
        /// It was not run: a worker was busy with the batches of others. Its tickets went back to wait.
        TurnedAway = "turned_away",
    }
}

label_values! {
    /// What the CUDA executor does with a batch. Some of it runs beside the kernel of another batch.
    CudaPhase {
        /// Packing the inputs into pinned memory.
        Stage = "stage",
        /// Their copy to the device.
        H2d = "h2d",
        /// The kernel, and its launch.
        Kernel = "kernel",
        /// The copy of the results.
        D2h = "d2h",
        /// Reading them.
        Demux = "demux",
        /// The device's time from the end of one kernel until the launch of the next, which had boarded ahead, reaches it. What
        /// that launch takes from there, a few microseconds, counts as kernel.
        Gap = "gap",
    }
}

label_values! {
    /// How a search for bad inputs ended.
    Isolation {
        /// Bad inputs were found and proven; everybody else was answered.
        Blamed = "blamed",
        /// Nobody failed alone (or whoever did has left): all were answered.
        Innocent = "innocent",
        /// The canary failed as well: the device is the suspect.
        SuspectDevice = "suspect_device",
        /// It ran out of its budget, or left somebody no time.
        Stopped = "stopped",
        /// The GPU failed in the middle of it.
        Lost = "lost",
    }
}

label_values! {
    /// What became of a configuration that was read again.
    Reload {
        /// Workers or keys have changed.
        Applied = "applied",
        /// Nothing that can change while the server runs has changed.
        Unchanged = "unchanged",
        /// It makes no sense: everything stays as it was.
        Refused = "refused",
    }
}

/// The states of a GPU, as `gpu_state{state}` spells them.
pub const GPU_STATES: [&str; 7] = [
    "warming", "ready", "busy", "down", "probing", "draining", "gone",
];

/// The zones; a zone's position is its value in the `zone` gauge.
pub const ZONES: [&str; 4] = ["green", "yellow", "red", "limit"];

/// The status codes counted by name, ascending; all others are counted as [`OTHER_CODE`].
pub const CODES: [u16; 21] = [
    200, 400, 401, 404, 405, 408, 409, 413, 414, 415, 417, 422, 429, 431, 499, 500, 501, 502, 503,
    504, 505,
];

/// The label of a status code that is not in [`CODES`].
pub const OTHER_CODE: &str = "other";

/// The label of a request that was refused before its tier was known.
pub const NO_TIER: &str = "none";

/// Position of `status` in [`CODES`], or `CODES.len()`.
pub fn code_index(status: u16) -> usize {
    if status == CODES[0] {
        return 0;
    }
    CODES.binary_search(&status).unwrap_or(CODES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_and_no_other() {
        for (index, code) in CODES.into_iter().enumerate() {
            assert_eq!(code_index(code), index);
        }
        for status in [0, 100, 199, 201, 302, 418, 599, u16::MAX] {
            assert_eq!(code_index(status), CODES.len());
        }
    }

    #[test]
    fn label_values_are_indexed_by_position_and_named_once() {
        let mut names: Vec<_> = ShedReason::ALL.iter().map(|reason| reason.name()).collect();
        for (index, reason) in ShedReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ShedReason::COUNT);
    }
}
