//! What a function is given, what it may return, and where it finds itself.

use crate::model::{Model, start, wait_all_ready};
use crate::steady::fresh_status;
use crate::support::client::post_body;
use crate::support::tools::is_there;
use crate::support::{in_parallel, unique};

const UPPER: &str = "def batchstring(inputs):\n    return [text.upper() for text in inputs]\n";
const ECHO: &str = "def batchstring(inputs):\n    return inputs\n";

#[test]
fn texts_come_back_as_they_went() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(ECHO).serve(1, &[]);
    let mut client = server.connect();
    let large = "ä€🎉x".repeat(6_400);
    let texts = [
        "",
        " ",
        "a\0b",
        "line\nend\r\n",
        "ß ﬁ 日本語",
        "🚠👩‍👩‍👧",
        "\u{10FFFF}\u{FFFD}\u{FEFF}",
        "\u{2028}",
        &large,
    ];
    for text in texts {
        assert_eq!(client.infer(text).output(), text);
    }
}

#[test]
fn a_full_batch_of_the_largest_inputs_comes_back_in_order() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(ECHO).serve(
        1,
        &[
            "--hold-max-ms",
            "20000",
            "--patience",
            "inf",
            "--batch-max",
            "32",
        ],
    );
    in_parallel(64, |index| {
        let text = format!("{index}:").repeat(16_000);
        assert!(server.infer(&text).output() == text);
    });
}

/// Batches of eight that wait for each other: the next one is staged while the present one runs, and withdrawn when that
/// takes six times as long as usual. 400 KB are more than a socket holds.
#[test]
fn batches_that_are_staged_ahead_and_withdrawn_are_not_mixed_up() {
    if !is_there("python3") {
        return;
    }
    let source = "import time\ncalls = 0\ndef batchstring(inputs):\n    global calls\n    calls += 1\n    \
                  time.sleep(0.18 if calls % 5 == 0 else 0.03)\n    return [text.upper() for text in inputs]\n";
    let flags = ["--batch-max", "8"];
    let server = Model::new(source).serve(2, &flags);
    in_parallel(48, |index| {
        let mut client = server.connect();
        for _ in 0..12 {
            let text = unique(if index % 2 == 0 { "short" } else { "long" });
            let text = text.repeat(if index % 2 == 0 { 1 } else { 3_000 });
            let response = client.infer(&text);
            assert!(response.output() == text.to_uppercase());
        }
    });
    assert_eq!(
        fresh_status(&server)["totals"]["retries"],
        0,
        "no worker was lost"
    );
}

#[test]
fn prints_go_to_the_log_and_nowhere_else() {
    if !is_there("python3") {
        return;
    }
    let source = "import os, sys\nprint('at import')\ndef batchstring(inputs):\n    print('out', inputs[0])\n    \
                  print('err', inputs[0], file=sys.stderr)\n    os.write(1, b'\\x00\\x00\\x00\\x01R' * 30000 + b'\\n')\n    \
                  sys.stdin.read()\n    return [text.upper() for text in inputs]\n";
    let server = Model::new(source).serve(1, &[]);
    for _ in 0..3 {
        let text = unique("printed");
        server.infer(&text).expect_output(&text);
        server.wait_log(&format!("gpu 0 | out {text}"));
        server.wait_log(&format!("gpu 0 | err {text}"));
    }
    assert!(server.log().contains("gpu 0 | at import"));
    assert!(!server.screen().contains("at import"));
}

#[test]
fn a_class_is_built_and_set_up_once_in_each_process() {
    if !is_there("python3") {
        return;
    }
    let source = "import os\nclass Model:\n    def __init__(self):\n        self.built = os.getpid()\n    def setup(self):\n        \
                  self.calls = 0\n    def __call__(self, inputs):\n        self.calls += 1\n        \
                  return [f'{self.built == os.getpid()} {self.calls}' for _ in inputs]\nready = Model()\nready.setup()\n";
    let model = Model::new(source);
    for function in [":Model", ":ready", ":ready.__call__"] {
        let mut server = start(&model.target(function), &["--gpus", "1"]);
        wait_all_ready(&mut server);
        let calls: Vec<String> = (0..3).map(|_| server.infer("x").output()).collect();
        // The canary was the first call.
        assert_eq!(calls, ["True 2", "True 3", "True 4"], "{function}");
    }
}

#[test]
fn modules_and_neighbours_are_found_as_python_finds_them() {
    if !is_there("python3") {
        return;
    }
    let model = Model::new(
        "import sys\nfrom neighbour import greet\nfrom dataclasses import dataclass\n@dataclass\nclass D:\n    a: int = 1\ndef batchstring(inputs):\n    return [greet(text) + ' ' + __name__ for text in inputs]\n",
    );
    model.write(
        "neighbour.py",
        "def greet(text):\n    return 'hello ' + text\n",
    );
    let server = model.serve(1, &[]);
    assert_eq!(server.infer("you").output(), "hello you model");
    // A package that is installed, or on the path.
    let path = server.model.path("").display().to_string();
    let mut server = start(
        "model:batchstring",
        &["--gpus", "1", "--python-env", &format!("PYTHONPATH={path}")],
    );
    wait_all_ready(&mut server);
    assert_eq!(server.infer("you").output(), "hello you model");
}

#[test]
fn a_second_argument_gets_the_parameters() {
    if !is_there("python3") {
        return;
    }
    let wanted = [
        (
            "def batchstring(inputs, parameters):\n",
            "[{'max_tokens': 5, 'x': [1]}, {}]",
        ),
        (
            "def batchstring(inputs, anything):\n",
            "[{'max_tokens': 5, 'x': [1]}, {}]",
        ),
        (
            "def batchstring(inputs, parameters=None):\n",
            "[{'max_tokens': 5, 'x': [1]}, {}]",
        ),
        (
            "def batchstring(inputs, batch_size=32):\n    parameters = batch_size\n",
            "32",
        ),
        (
            "def batchstring(*inputs):\n    parameters, inputs = len(inputs), inputs[0]\n",
            "1",
        ),
    ];
    for (head, expected) in wanted {
        let head = head.replace("anything):\n", "anything):\n    parameters = anything\n");
        let source = format!("{head}    return [repr(parameters) for _ in inputs]\n");
        let server = Model::new(&source).serve(
            1,
            &[
                "--hold-max-ms",
                "20000",
                "--patience",
                "inf",
                "--batch-max",
                "2",
            ],
        );
        let bodies = [
            r#"{"input":"a","parameters":{"max_tokens":5,"x":[1]}}"#,
            r#"{"input":"b"}"#,
        ];
        let outputs = in_parallel(2, |index| {
            server
                .connect()
                .request(post_body("", bodies[index]))
                .output()
        });
        let reversed = "[{}, {'max_tokens': 5, 'x': [1]}]";
        assert!(
            outputs[0] == expected || outputs[0] == reversed,
            "{head}: {outputs:?}"
        );
        let note = "(its argument `anything` is given the parameters)";
        if head.contains("anything") {
            server.wait_log(note);
        } else {
            assert!(!server.log().contains("is given the parameters"), "{head}");
        }
    }
}

#[test]
fn arguments_of_their_names_get_parameters_and_request_ids() {
    if !is_there("python3") {
        return;
    }
    let (parameters, both) = ("{'x': 1}", "('mine-1', {'x': 1})");
    let heads = [
        ("inputs, request_ids", "i", "'mine-1'"),
        ("inputs, *, request_ids", "i", "'mine-1'"),
        ("inputs, request_ids=()", "i", "'mine-1'"),
        ("inputs, parameters, request_ids", "(i, p)", both),
        ("inputs, request_ids, parameters", "(i, p)", both),
        ("inputs, other, request_ids", "(i, o)", both),
        (
            "inputs, batch_size=32, *, request_ids, parameters=()",
            "(i, p)",
            both,
        ),
        ("inputs, *, parameters", "p", parameters),
        ("inputs, parameters, /", "p", parameters),
    ];
    for (head, what, expected) in heads {
        let column = |name: &'static str| if head.contains(name) { name } else { "inputs" };
        let columns = ["request_ids", "parameters", "other"]
            .map(column)
            .join(", ");
        let source = format!(
            "def batchstring({head}):\n    assert len({}) == len(inputs)\n    return [repr({what}) for i, p, o in zip({columns})]\n",
            column("request_ids"),
        );
        let server = Model::new(&source).serve(1, &[]);
        let body = r#"{"input": "a", "parameters": {"x": 1}}"#;
        let head_lines = "X-Request-Id: mine-1\r\n";
        let output = server.connect().request(post_body(head_lines, body));
        assert_eq!(output.output(), expected, "{head}");
    }
}

#[test]
fn tokens_are_reported_where_the_function_reports_them() {
    if !is_there("python3") {
        return;
    }
    let source = "def batchstring(inputs):\n    return [(text, 7) if text == 'counted' else text for text in inputs]\n";
    let server = Model::new(source).serve(1, &[]);
    assert_eq!(server.infer("counted").json()["metadata"]["tokens_used"], 7);
    assert_eq!(server.infer("a b c").json()["metadata"]["tokens_used"], 6);
}

#[test]
fn each_worker_knows_its_gpu() {
    if !is_there("python3") {
        return;
    }
    let source = "import os\ndef batchstring(inputs):\n    names = ('FUNICULAR_GPU', 'CUDA_VISIBLE_DEVICES', 'OWN', 'ONE')\n    \
                  return [' '.join(os.environ.get(name, '-') for name in names) for _ in inputs]\n";
    let flags = [
        "--python-env",
        "OWN=g{gpu}",
        "--python-env",
        "1:ONE=x",
        "--patience",
        "0",
        "--batch-max",
        "1",
    ];
    let server = Model::new(source).serve(2, &flags);
    let mut seen = Vec::new();
    crate::support::wait_for("both GPUs to have answered", || {
        seen.extend(in_parallel(4, |_| server.infer("x").output()));
        seen.sort();
        seen.dedup();
        seen.len() >= 2
    });
    assert_eq!(seen, ["0 0 g0 -", "1 1 g1 x"]);
}

#[test]
fn a_python_of_a_virtual_environment_is_chosen() {
    if !is_there("python3") {
        return;
    }
    let model = Model::new(
        "import sys\ndef batchstring(inputs):\n    return [sys.prefix for _ in inputs]\n",
    );
    let venv = model.path("venv");
    let made = std::process::Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 can't make virtual environments");
        return;
    }
    let bin = venv.join("bin/python");
    let server = model.serve(1, &["--python-bin", bin.to_str().expect("text")]);
    assert_eq!(server.infer("x").output(), venv.to_str().expect("text"));
    assert!(server.screen().contains(bin.to_str().expect("text")));
    let mut check =
        crate::support::server::command(&["check", "--python", &server.model.target("")]);
    let output = check.env("VIRTUAL_ENV", &venv).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains(bin.to_str().expect("text")));
}

#[test]
fn the_start_up_screen_names_the_function() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(UPPER).serve(1, &[]);
    let line = format!("python: {}, run by ", server.model.target(""));
    assert!(server.screen().contains(&line), "{}", server.screen());
    assert_eq!(server.status()["executor"], "python");
}
