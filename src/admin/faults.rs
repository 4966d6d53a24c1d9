//! `/faults`: the query string is a line of the simulated executor's script, as [`crate::gpu::faults`] describes it.
//!
//! `GET` although it changes something: the library reads no bodies, and whoever tries out failures by hand types a URL.
//! So it exists only where `--sim-faults-admin` says so. Nothing is percent-decoded: a marker stands as it is.

use may_minihttp::Response;

use super::text;
use crate::gpu::faults::{Fault, Script};

/// Adds the line in the query of `target` to `script`: 200 with the line as it was understood, or 400 with what is wrong.
pub(super) fn script(script: &Script, target: &str, response: &mut Response) {
    let line = target.split_once('?').map_or("", |(_, query)| query);
    match read(line, script.gpus()) {
        Ok(fault) => {
            text(response, 200, "OK", "");
            response
                .body_mut()
                .extend_from_slice(format!("{fault}\n").as_bytes());
            log::warn!("a fault is scripted: {fault}");
            script.add(fault);
        }
        Err(problem) => {
            text(response, 400, "Bad Request", "");
            response
                .body_mut()
                .extend_from_slice(format!("{problem}\n").as_bytes());
        }
    }
}

fn read(line: &str, gpus: usize) -> Result<Fault, String> {
    let fault: Fault = line.parse().map_err(|problem| format!("{problem}"))?;
    match fault.gpu() {
        Some(gpu) if gpu >= gpus => Err(format!("gpu={gpu}: the last GPU is number {}", gpus - 1)),
        _ => Ok(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_line_is_taken_or_refused_with_the_reason() {
        let taken = read("kind=hang&gpu=1&batch=20", 2).expect("a good line");
        assert_eq!(taken.to_string(), "kind=hang,gpu=1,batch=20,ms=0");
        for (line, reason) in [
            ("", "needs kind="),
            ("kind=sulk", "not \"sulk\""),
            ("kind=lost&gpu=2", "the last GPU is number 1"),
            ("kind=lost&gpus=1", "no key"),
        ] {
            let refused = read(line, 2).expect_err("a bad line");
            assert!(refused.contains(reason), "{line}: {refused}");
        }
    }
}
