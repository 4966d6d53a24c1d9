//! The compiled kernels that the server carries, and what is written about them.

const PTX: &str = include_str!("../../kernels/bundled.ptx");
const HEADER: &str = include_str!("../../kernels/funicular.h");
const EXAMPLE: &str = include_str!("../../kernels/example.cu");
const GUIDE: &str = include_str!("../../kernels/README.md");

/// The first word of what follows `start` on each line that starts so.
fn after<'a>(start: &str) -> Vec<&'a str> {
    let lines = PTX.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix(start))
        .map(|rest| rest.trim_end_matches('('))
        .collect()
}

#[test]
fn it_has_the_two_entries_that_the_guide_names() {
    assert_eq!(after(".visible .entry "), ["batchstring", "busy"]);
    for entry in after(".visible .entry ") {
        assert!(GUIDE.contains(&format!("`{entry}`")), "{entry}");
    }
}

#[test]
fn each_entry_takes_one_batch_by_value() {
    assert_eq!(
        after(".param "),
        [
            ".align 8 .b8 batchstring_param_0[56]",
            ".align 8 .b8 busy_param_0[56]"
        ]
    );
}

#[test]
fn it_runs_on_every_gpu_from_sm_80_and_every_driver_from_cuda_11() {
    assert_eq!(after(".version "), ["7.0"]);
    assert_eq!(after(".target "), ["sm_80"]);
}

#[test]
fn memory_is_read_and_written_in_whole_vectors_and_nothing_spills() {
    // Both source vectors and the output's, in each kernel.
    assert_eq!(after("ld.global.v4.u32").len(), 4);
    assert_eq!(after("st.global.v4.u32").len(), 2);
    assert!(!PTX.contains(".local"));
}

#[test]
fn the_guide_shows_the_example_as_it_is() {
    assert!(GUIDE.contains(EXAMPLE.trim_end()));
}

#[test]
fn the_guide_names_every_field_of_the_batch() {
    let start = HEADER
        .find("typedef struct funicular_batch")
        .expect("the struct");
    let fields = HEADER[start..]
        .lines()
        .take_while(|line| !line.starts_with('}'))
        .filter(|line| line.ends_with(';'))
        .map(|line| line.trim().trim_end_matches(';'))
        .map(|line| line.rsplit([' ', '*']).next().expect("a name"));
    let missing: Vec<_> = fields
        .filter(|field| !GUIDE.contains(&format!("`{field}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?} not in kernels/README.md");
}
