//! Packing and reading against a naive version that knows nothing of buffers.

use proptest::prelude::*;

use super::*;

const ROOMS: Rooms = Rooms {
    factor: 2,
    extra: 5,
    most: 1 << 16,
};

fn inputs(texts: &[String]) -> Vec<Input> {
    texts.iter().map(|text| Input::new(text.as_str())).collect()
}

/// What a kernel would do with input `index`.
#[derive(Clone, Debug)]
struct Deed {
    status: u32,
    length: Option<u32>,
    text: Vec<u8>,
}

/// Runs `deeds` as a device would: from what went up alone, into what comes down.
fn run(layout: &Layout, up: &[u8], deeds: &[Deed], down: &mut [u8]) {
    for (index, deed) in deeds.iter().enumerate() {
        let offsets = layout.output_offsets_at();
        let start = number_at(up, offsets + WORD * index) as usize;
        let end = number_at(up, offsets + WORD * (index + 1)) as usize;
        assert_eq!(start % OUTPUT_ALIGNMENT, 0);
        let written = deed.text.len().min(end - start);
        let at = layout.output_at() + start;
        down[at..at + written].copy_from_slice(&deed.text[..written]);
        let length = deed.length.unwrap_or(deed.text.len() as u32);
        down[WORD * index..][..WORD].copy_from_slice(&length.to_ne_bytes());
        let status = layout.statuses_at() + WORD * index;
        down[status..][..WORD].copy_from_slice(&deed.status.to_ne_bytes());
    }
}

fn unset(layout: &Layout) -> Vec<u8> {
    let mut down = vec![0; layout.download_bytes()];
    down[..layout.statuses_at() * 2].fill(0xFF);
    down
}

/// What the caller of input `text` should get, said in other words.
fn expected(text: &str, deed: &Deed) -> Result<String, &'static str> {
    let room = (2 * text.len() + 5).min(1 << 16).next_multiple_of(16);
    let length = deed.length.unwrap_or(deed.text.len() as u32);
    match deed.status {
        UNSET => return Err("set no status"),
        0 | 1 => {}
        _ => return Err("which means nothing"),
    }
    if length == UNSET {
        return Err("set no length");
    }
    if length as usize > room {
        return Err("and there is room for");
    }
    let mut bytes = deed.text.clone();
    bytes.resize(bytes.len().max(length as usize), 0);
    match (
        String::from_utf8(bytes[..length as usize].to_vec()),
        deed.status,
    ) {
        (Err(_), _) => Err("not UTF-8"),
        (Ok(text), 0) => Ok(text),
        (Ok(_), _) => Err(""),
    }
}

fn deed() -> impl Strategy<Value = Deed> {
    let status = prop_oneof![8 => Just(0), 2 => Just(1), 1 => Just(UNSET), 1 => any::<u32>()];
    let length = prop_oneof![6 => Just(None), 1 => any::<u32>().prop_map(Some), 1 => (0_u32..200).prop_map(Some)];
    let text = prop_oneof![
        4 => ".{0,60}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..60),
    ];
    (status, length, text).prop_map(|(status, length, text)| Deed {
        status,
        length,
        text,
    })
}

proptest! {
    #[test]
    fn everybody_gets_what_the_kernel_made_of_its_own_input(
        cases in proptest::collection::vec((".{0,40}", deed()), 1..30),
    ) {
        let (texts, deeds): (Vec<String>, Vec<Deed>) = cases.into_iter().unzip();
        let sizes = Sizes::needed(30, 160, ROOMS).expect("small");
        let (mut layout, mut up) = (Layout::default(), vec![0xAA; sizes.input]);
        layout.pack(&inputs(&texts), ROOMS, sizes, &mut up).expect("within the limits");
        prop_assert_eq!(layout.count(), texts.len());
        for (index, text) in texts.iter().enumerate() {
            let start = layout.input_at() + number_at(&up, WORD * index) as usize;
            let end = layout.input_at() + number_at(&up, WORD * (index + 1)) as usize;
            prop_assert_eq!(&up[start..end], text.as_bytes());
        }
        prop_assert_eq!(layout.input_at() % 16 + layout.output_at() % 16, 0);
        prop_assert!(up[layout.upload_bytes()..].iter().all(|byte| *byte == 0xAA));
        let mut down = unset(&layout);
        run(&layout, &up, &deeds, &mut down);
        let results = layout.results(&down);
        prop_assert_eq!(results.len(), texts.len());
        for ((text, deed), result) in texts.iter().zip(&deeds).zip(results) {
            match (expected(text, deed), result) {
                (Ok(expected), Ok(output)) => prop_assert_eq!(output.text, expected),
                (Err(part), Err(reason)) => prop_assert!(reason.contains(part), "{reason}: {part}"),
                (expected, result) => prop_assert!(false, "{expected:?} but {result:?}"),
            }
        }
    }

    #[test]
    fn whatever_keeps_the_limits_fits(
        lengths in proptest::collection::vec(0_usize..=50, 1..=20),
        factor in 0_usize..4, extra in 0_usize..40, most in 0_usize..100,
    ) {
        let rooms = Rooms { factor, extra, most };
        let sizes = Sizes::needed(20, 50, rooms).expect("small");
        let texts: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
        let (mut layout, mut up) = (Layout::default(), vec![0; sizes.input]);
        layout.pack(&inputs(&texts), rooms, sizes, &mut up).expect("within the limits");
        prop_assert!(layout.upload_bytes() <= sizes.input && layout.download_bytes() <= sizes.output);
        let nothing = layout.results(&unset(&layout));
        prop_assert!(nothing.iter().all(Result::is_err));
    }
}

#[test]
fn what_breaks_the_limits_is_no_batch() {
    let sizes = Sizes::needed(2, 8, ROOMS).expect("small");
    let (mut layout, mut up) = (Layout::default(), vec![0; sizes.input]);
    let mut pack = |texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let packed = layout.pack(&inputs(&texts), ROOMS, sizes, &mut up);
        (packed.is_ok(), layout.count())
    };
    assert_eq!(pack(&["12345678", "12345678"]), (true, 2));
    assert_eq!(pack(&[]), (false, 0));
    assert_eq!(pack(&["12345678", "1", "1234567812345678"]), (false, 0));
    assert_eq!(pack(&["12345678123456789"]), (true, 1));
    assert_eq!(pack(&[&"1".repeat(64)]), (false, 0));
}

#[test]
fn offsets_of_four_bytes_bound_the_buffers() {
    let rooms = |factor, most| Rooms {
        factor,
        extra: 0,
        most,
    };
    let limit = 1 << 30;
    assert!(Sizes::needed(4, limit - 64, rooms(1, limit)).is_some());
    assert_eq!(Sizes::needed(4, limit, rooms(0, limit)), None);
    assert_eq!(Sizes::needed(4_096, 1 << 19, rooms(2, limit)), None);
    assert!(Sizes::needed(4_096, 1 << 19, rooms(2, 1 << 10)).is_some());
    assert_eq!(
        Sizes::needed(usize::MAX, usize::MAX, rooms(usize::MAX, usize::MAX)),
        None
    );
}

#[test]
fn an_output_too_long_names_the_setting_that_gave_it_its_room() {
    let said = |rooms: Rooms, length: u32| {
        let sizes = Sizes::needed(1, 100, rooms).expect("small");
        let (mut layout, mut up) = (Layout::default(), vec![0; sizes.input]);
        let texts = ["four".to_owned()];
        layout
            .pack(&inputs(&texts), rooms, sizes, &mut up)
            .expect("fits");
        let deed = Deed {
            status: 0,
            length: Some(length),
            text: Vec::new(),
        };
        let mut down = unset(&layout);
        run(&layout, &up, &[deed], &mut down);
        layout.results(&down).remove(0)
    };
    assert_eq!(
        said(ROOMS, 17),
        Err("the kernel's output has 17 bytes, and there is room for 16: raise --cuda-output-factor or --cuda-output-extra"
            .to_owned())
    );
    let tight = Rooms { most: 3, ..ROOMS };
    let refusal = said(tight, 99).expect_err("too long");
    assert!(refusal.ends_with("raise --output-max-bytes"), "{refusal}");
    assert!(said(ROOMS, 16).is_ok());
}
