//! The output of `funicular devices`.

use serde::Serialize;

use crate::config::units::bytes;
use crate::gpu::cuda::device::Description;
use crate::gpu::cuda::driver::{Unavailable, version_text};

/// The devices as a table, and the CUDA of their driver.
pub fn devices(devices: &[Description], version: i32) -> String {
    let row = |device: &Description| {
        [
            device.gpu.to_string(),
            device.name.clone(),
            bytes(device.memory_bytes),
            device.compute_capability.clone(),
            device.pci_bus_id.clone(),
        ]
    };
    let titles = ["GPU", "name", "memory", "compute", "PCI bus"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles)
        .chain(devices.iter().map(row))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 5] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut text = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&format!("driver: CUDA {}\n", version_text(version)));
    text
}

#[derive(Serialize)]
struct Listing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_cuda: Option<String>,
    devices: &'a [Description],
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The same as JSON; without devices, why there are none.
pub fn devices_json(found: &Result<(Vec<Description>, i32), Unavailable>) -> String {
    let listing = match found {
        Ok((devices, version)) => Listing {
            driver_cuda: Some(version_text(*version)),
            devices,
            problem: None,
        },
        Err(problem) => Listing {
            driver_cuda: None,
            devices: &[],
            problem: Some(problem.to_string()),
        },
    };
    let mut text = serde_json::to_string_pretty(&listing).expect("texts and numbers");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(gpu: usize, name: &str) -> Description {
        Description {
            gpu,
            name: name.to_owned(),
            memory_bytes: 80 << 30,
            compute_capability: "8.0".to_owned(),
            pci_bus_id: "0000:17:00.0".to_owned(),
        }
    }

    #[test]
    fn devices_stand_in_a_table() {
        let table = devices(
            &[device(0, "A100"), device(10, "A100 with a long name")],
            12_040,
        );
        let expected = "\
GPU  name                   memory  compute  PCI bus
0    A100                   80 GiB  8.0      0000:17:00.0
10   A100 with a long name  80 GiB  8.0      0000:17:00.0
driver: CUDA 12.4
";
        assert_eq!(table, expected);
    }

    #[test]
    fn scripts_read_devices_or_the_reason_why_there_are_none() {
        let read = |found| -> serde_json::Value {
            serde_json::from_str(&devices_json(&found)).expect("JSON")
        };
        let some = read(Ok((vec![device(1, "A100")], 11_080)));
        assert_eq!(some["driver_cuda"], "11.8");
        assert_eq!(some["devices"][0]["gpu"], 1);
        assert_eq!(some["devices"][0]["memory_bytes"], 80_u64 << 30);
        let none = read(Err(Unavailable::NoDevice("it counts 0".to_owned())));
        assert_eq!(none["devices"], serde_json::json!([]));
        assert!(
            none["problem"]
                .as_str()
                .is_some_and(|text| text.contains("it counts 0"))
        );
    }
}
