//! What the stand-in driver noted: see `fakecuda/journal.h` for the lines.

use std::collections::BTreeMap;

use serde_json::Value;

/// Everything that was noted until it was read.
#[derive(Debug)]
pub struct Journal {
    lines: Vec<Value>,
}

/// What a stream did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number, ascending in the order in which operations were enqueued.
    pub op: u64,
    /// `kernel`, `h2d`, `d2h`, `memset`, `record`, `wait` or `hostfunc`.
    pub kind: String,
    /// The device.
    pub device: u64,
    /// The stream, by a number that no other stream ever has.
    pub stream: u64,
    /// The event that it records or waits for.
    pub about: u64,
    /// How often that event was recorded by then.
    pub generation: u64,
    /// When it was enqueued, in nanoseconds of some clock.
    pub enqueued: u64,
    /// When it began.
    pub began: Option<u64>,
    /// When it ended.
    pub ended: Option<u64>,
    /// The code with which it ended, or was dropped.
    pub code: u64,
}

/// One batch on its way through a stream.
#[derive(Clone, Debug)]
pub struct Ride {
    /// The copy of its inputs.
    pub upload: Operation,
    /// Its kernel.
    pub kernel: Operation,
    /// The copy of its results.
    pub download: Operation,
}

impl Operation {
    /// How long it ran; 0 if that is not known.
    pub fn span_ns(&self) -> u64 {
        let (began, ended) = (self.began.unwrap_or(0), self.ended.unwrap_or(0));
        if self.began.is_some() {
            ended.saturating_sub(began)
        } else {
            0
        }
    }
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap_or(0)
}

impl Journal {
    /// Reads the text of a journal.
    ///
    /// # Panics
    /// If a whole line of it is none.
    pub fn parse(text: &str) -> Journal {
        // The last line may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parsed = whole
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON object"));
        Journal {
            lines: parsed.collect(),
        }
    }

    /// The lines about `event`.
    pub fn events<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.lines.iter().filter(move |line| line["event"] == event)
    }

    /// What the program under test did that no correct program does.
    pub fn violations(&self) -> Vec<&str> {
        self.events("violation")
            .map(|line| line["text"].as_str().expect("a text"))
            .collect()
    }

    /// The lines about what was made (`create`) or given back (`destroy`), of one kind.
    pub fn of_things<'a>(
        &'a self,
        event: &'a str,
        what: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.events(event).filter(move |line| line["what"] == what)
    }

    /// All operations in the order in which they were enqueued.
    pub fn operations(&self) -> Vec<Operation> {
        let mut found: BTreeMap<u64, Operation> = BTreeMap::new();
        for line in &self.lines {
            let (at, op) = (number(line, "at_ns"), number(line, "op"));
            match line["event"].as_str() {
                Some("enqueue") => {
                    let operation = Operation {
                        op,
                        kind: line["kind"].as_str().expect("a kind").to_owned(),
                        device: number(line, "device"),
                        stream: number(line, "stream"),
                        about: number(line, "about"),
                        generation: number(line, "generation"),
                        enqueued: at,
                        began: None,
                        ended: None,
                        code: 0,
                    };
                    found.insert(op, operation);
                }
                Some("begin") => found.get_mut(&op).expect("enqueued").began = Some(at),
                Some("end" | "dropped") => {
                    let operation = found.get_mut(&op).expect("enqueued");
                    operation.ended = Some(at);
                    operation.code = number(line, "code");
                }
                _ => {}
            }
        }
        found.into_values().collect()
    }

    /// The batches of a device that went all the way, in the order in which their kernels began.
    pub fn rides(&self, device: u64) -> Vec<Ride> {
        let mut streams: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
        for operation in self.operations() {
            if operation.device == device && matches!(&*operation.kind, "h2d" | "kernel" | "d2h") {
                streams.entry(operation.stream).or_default().push(operation);
            }
        }
        let mut rides: Vec<Ride> = streams
            .values()
            .flat_map(|operations| rides_of(operations))
            .collect();
        rides.sort_unstable_by_key(|ride| ride.kernel.began);
        rides
    }
}

/// Each kernel of a stream with the copy in front of it and the one behind it.
fn rides_of(operations: &[Operation]) -> Vec<Ride> {
    let whole = operations.windows(3).filter(|three| {
        let kinds = [&*three[0].kind, &*three[1].kind, &*three[2].kind];
        kinds == ["h2d", "kernel", "d2h"]
            && three
                .iter()
                .all(|each| each.ended.is_some() && each.code == 0)
    });
    let ride = |three: &[Operation]| Ride {
        upload: three[0].clone(),
        kernel: three[1].clone(),
        download: three[2].clone(),
    };
    whole.map(ride).collect()
}
