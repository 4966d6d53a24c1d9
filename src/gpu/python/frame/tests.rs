use super::*;
use proptest::prelude::*;

fn done(kinds: &[u8], lengths: &[u32], rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    framed(&mut bytes, |body| {
        body.push(b'D');
        put(body, 7);
        put(body, size(kinds.len()));
        body.extend_from_slice(kinds);
        lengths.iter().for_each(|length| put(body, *length));
        body.extend_from_slice(rest);
    });
    bytes
}

#[test]
fn results_come_out_in_the_order_of_their_inputs() {
    let mut rest = Vec::new();
    for tokens in [0_u64, 9, 0] {
        rest.extend_from_slice(&tokens.to_le_bytes());
    }
    rest.extend_from_slice("aüno".as_bytes());
    let bytes = done(&[0, 1, 2], &[1, 2, 2], &rest);
    let output = |text: &str, tokens| {
        Ok(Output {
            text: text.to_owned(),
            tokens,
        })
    };
    let results = vec![
        output("a", None),
        output("ü", Some(9)),
        Err("no".to_owned()),
    ];
    assert_eq!(
        parse(&bytes),
        Ok(Some((Frame::Done { number: 7, results }, bytes.len())))
    );
}

#[test]
fn a_worker_that_is_ready_says_what_its_function_takes() {
    let bytes = b"\x0C\0\0\0R\x01\x01\0\0\0t3.8.0"[..].to_vec();
    let ready = Frame::Ready {
        version: "3.8.0".to_owned(),
        takes: Extras::of_bits(1),
        other_name: "t".to_owned(),
    };
    assert_eq!(parse(&bytes), Ok(Some((ready, bytes.len()))));
    let too_long = b"\x07\0\0\0R\x01\x02\0\0\0t";
    assert!(parse(too_long).is_err());
}

#[test]
fn an_empty_output_is_an_output() {
    let results = vec![Ok(Output::default()), Ok(Output::default())];
    let bytes = done(&[0, 0], &[0, 0], b"");
    assert_eq!(
        parse(&bytes),
        Ok(Some((Frame::Done { number: 7, results }, bytes.len())))
    );
}

#[test]
fn a_frame_that_does_not_add_up_is_refused() {
    let wrong = [
        done(&[0], &[2], b"a"),
        done(&[0], &[1], b"ab"),
        done(&[3], &[1], b"a"),
        done(&[0], &[1], b"\xFF"),
        done(&[1], &[1], b"a"),
        vec![1, 0, 0, 0, b'?'],
        vec![0, 0, 0, 0],
        vec![0xFF; 8],
    ];
    for bytes in wrong {
        assert!(parse(&bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn frames_for_the_worker_say_what_is_documented() {
    let mut bytes = Vec::new();
    let inputs = [
        Input::new("é"),
        Input {
            text: "b".into(),
            parameters: Some("{}".into()),
            request_id: Some("r-7".into()),
        },
    ];
    let takes = |bits| Extras::of_bits(bits);
    batch(&mut bytes, Half::B, 5, &inputs, takes(1));
    let expected = [
        &[32, 0, 0, 0, b'B', 1, 5, 0, 0, 0, 2, 0, 0, 0, 1][..],
        &[2, 0, 0, 0, 1, 0, 0, 0],
        &[0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0],
        "éb{}".as_bytes(),
    ];
    assert_eq!(bytes, expected.concat());
    bytes.clear();
    batch(&mut bytes, Half::B, 5, &inputs, takes(3));
    let expected = [
        &[43, 0, 0, 0, b'B', 1, 5, 0, 0, 0, 2, 0, 0, 0, 3][..],
        &[2, 0, 0, 0, 1, 0, 0, 0],
        &[0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0],
        &[0xFF, 0xFF, 0xFF, 0xFF, 3, 0, 0, 0],
        "éb{}r-7".as_bytes(),
    ];
    assert_eq!(bytes, expected.concat());
    bytes.clear();
    batch(&mut bytes, Half::B, 5, &inputs[..1], takes(3));
    assert_eq!(bytes[14], 0, "what nobody has is not sent");
    bytes.clear();
    go(&mut bytes, Half::A, 5);
    assert_eq!(bytes, [6, 0, 0, 0, b'G', 0, 5, 0, 0, 0]);
    bytes.clear();
    terms(&mut bytes, 17, 258);
    assert_eq!(bytes, [8, 0, 0, 0, 17, 0, 0, 0, 2, 1, 0, 0]);
    bytes.clear();
    terms(&mut bytes, 17, usize::MAX);
    assert_eq!(bytes[8..], [0, 0, 0, 64], "as much as a frame holds");
}

#[test]
fn the_end_of_a_batch_may_be_told_before_its_results() {
    let bytes = [5, 0, 0, 0, b'N', 7, 0, 0, 0, 99];
    assert_eq!(parse(&bytes), Ok(Some((Frame::Ended { number: 7 }, 9))));
    assert!(parse(&[6, 0, 0, 0, b'N', 7, 0, 0, 0, 99]).is_err());
}

proptest! {
    #[test]
    fn whatever_a_worker_sends_is_a_frame_part_of_one_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut framed_bytes = Vec::new();
        framed(&mut framed_bytes, |body| body.extend_from_slice(&bytes));
        for input in [&bytes[..], &framed_bytes[..]] {
            if let Ok(Some((_, length))) = parse(input) {
                prop_assert!(length <= input.len());
            }
        }
    }

    #[test]
    fn a_frame_that_is_cut_off_is_waited_for(cut in 0_usize..20) {
        let bytes = done(&[0], &[6], "aß€".as_bytes());
        prop_assert_eq!(parse(&bytes[..cut]), Ok(None));
    }
}
