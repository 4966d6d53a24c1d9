//! What a kernel is given: the `funicular_batch` of `kernels/funicular.h`, and the values that its statuses have.

use cuda_driver_sys::CUdeviceptr;

/// The size of the kernel's one parameter.
pub const ARGUMENT_BYTES: usize = 56;

/// The output is the answer.
pub const STATUS_OK: u32 = 0;
/// The input is refused; the output says why.
pub const STATUS_REFUSED: u32 = 1;
/// What statuses and lengths hold before the launch.
pub const UNSET: u32 = u32::MAX;

/// Outputs start at a multiple of this many bytes.
pub const OUTPUT_ALIGNMENT: usize = 16;

/// One batch, as the kernel sees it. All addresses are the device's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The bytes of all inputs.
    pub input: CUdeviceptr,
    /// Where each of them starts, and where the last one ends.
    pub input_offsets: CUdeviceptr,
    /// The rooms of all outputs.
    pub output: CUdeviceptr,
    /// Where each of them starts, and where the last one ends.
    pub output_offsets: CUdeviceptr,
    /// Set by the kernel: bytes of each output.
    pub output_lengths: CUdeviceptr,
    /// Set by the kernel: see the constants of this module.
    pub statuses: CUdeviceptr,
    /// Inputs in this batch.
    pub count: u32,
    /// Microseconds, for kernels that are made to take time.
    pub work_us: u32,
}

const _: () = assert!(size_of::<Argument>() == ARGUMENT_BYTES && align_of::<Argument>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../kernels/funicular.h");

    #[test]
    fn the_header_says_the_same() {
        for (name, value) in [
            ("FUNICULAR_OK", STATUS_OK),
            ("FUNICULAR_REFUSED", STATUS_REFUSED),
            ("FUNICULAR_OUTPUT_ALIGNMENT", OUTPUT_ALIGNMENT as u32),
        ] {
            assert!(
                HEADER.contains(&format!("#define {name} {value}u")),
                "{name}"
            );
        }
        assert!(
            HEADER.contains(&format!("#define FUNICULAR_UNSET {UNSET:#010X}u").replace("0X", "0x"))
        );
        let fields = [
            "*input;",
            "*input_offsets;",
            "*output;",
            "*output_offsets;",
            "*output_lengths;",
            "*statuses;",
            "count;",
            "work_us;",
        ];
        let places = fields.map(|field| HEADER.find(field));
        assert!(
            places.is_sorted() && places.iter().all(Option::is_some),
            "{places:?}"
        );
    }
}
