//! Everything that a user does wrong on the first day, and what the server says about it.

use crate::model::{Model, start};
use crate::support::tools::is_there;
use crate::support::{Client, Server, in_parallel, post, wait_for};

/// What is wrong with a function that can't be served, and what the log and `/status` must say.
struct Mistake {
    name: &'static str,
    source: &'static str,
    /// What stands behind `model.py`; or, if it begins with `=`, the whole target.
    function: &'static str,
    flags: &'static [&'static str],
    /// Must be in the reason that `/status` gives.
    says: &'static [&'static str],
    /// Must be in the log.
    logs: &'static [&'static str],
    /// Must not be in the reason: it would mislead.
    omits: &'static str,
}

impl Mistake {
    const fn new(
        name: &'static str,
        source: &'static str,
        says: &'static [&'static str],
    ) -> Mistake {
        Mistake {
            name,
            source,
            function: "",
            flags: &[],
            says,
            logs: &[],
            omits: "nobody says this",
        }
    }
}

const GOOD: &str = "def batchstring(inputs):\n    return inputs\n";

const AT_START: &[Mistake] = &[
    Mistake {
        function: "=/nowhere/model.py:f",
        ..Mistake::new("no file", GOOD, &["there is no file /nowhere/model.py"])
    },
    Mistake {
        function: "=/tmp:f",
        ..Mistake::new("a folder", GOOD, &["/tmp is a folder"])
    },
    Mistake {
        function: "=/etc/hostname:f",
        ..Mistake::new("no .py", GOOD, &["must end in .py"])
    },
    Mistake {
        function: "=no_such_package.module:f",
        ..Mistake::new(
            "no module",
            GOOD,
            &["No module named 'no_such_package'", "--python-bin"],
        )
    },
    Mistake {
        function: ":batchstrng",
        ..Mistake::new("misspelt", GOOD, &["did you mean 'batchstring'?"])
    },
    Mistake {
        function: ":f",
        ..Mistake::new(
            "other names",
            "def predict(inputs): pass\n",
            &["has no 'f'; it defines predict"],
        )
    },
    Mistake {
        function: ":g",
        ..Mistake::new(
            "many other names",
            "for number in range(30):\n    exec(f'def f{number:02}(inputs): pass')\n",
            &["it defines f00, f01, ", "f09, and 20 more"],
        )
    },
    Mistake::new(
        "not callable",
        "batchstring = {}\n",
        &["of the type dict, which can't be called"],
    ),
    Mistake {
        logs: &["line 2", "model.py"],
        ..Mistake::new(
            "a syntax error",
            "def batchstring(inputs):\n    return (\n",
            &["SyntaxError: '(' was never closed (/", "model.py, line 2)"],
        )
    },
    Mistake {
        logs: &["import torch_that_is_not_there"],
        ..Mistake::new(
            "a missing package",
            "import torch_that_is_not_there\n",
            &[
                "ModuleNotFoundError: No module named 'torch_that_is_not_there' (/",
                "model.py, line 1): is it installed for",
                "--python-bin",
            ],
        )
    },
    Mistake {
        logs: &["in load", "open('/nowhere/weights')"],
        ..Mistake::new(
            "it raises",
            "def load():\n    open('/nowhere/weights')\nload()\n",
            &["FileNotFoundError", "/nowhere/weights", "model.py, line 2)"],
        )
    },
    Mistake::new(
        "a script",
        "import sys\nsys.exit(2)\n",
        &["SystemExit: 2", "if __name__ == '__main__':"],
    ),
    Mistake::new(
        "async",
        "async def batchstring(inputs): pass\n",
        &["is an async function", "without async"],
    ),
    Mistake::new(
        "no argument",
        "def batchstring(): pass\n",
        &["batchstring() takes no inputs"],
    ),
    Mistake::new(
        "three arguments",
        "def batchstring(a, b, c): pass\n",
        &["batchstring(a, b, c) wants more"],
    ),
    Mistake::new(
        "almost the request ids",
        "def batchstring(inputs, request_id): pass\n",
        &["has an argument 'request_id'; did you mean 'request_ids'?"],
    ),
    Mistake::new(
        "almost the parameters, by name",
        "def batchstring(inputs, request_ids, *, parameter=None): pass\n",
        &["has an argument 'parameter'; did you mean 'parameters'?"],
    ),
    Mistake::new(
        "by name",
        "def batchstring(inputs, *, device): pass\n",
        &["wants more than the server has"],
    ),
    Mistake::new(
        "an instance that can't be built",
        "class batchstring:\n    def __init__(self, path): pass\n",
        &["can't be built without arguments", "path"],
    ),
    Mistake::new(
        "an instance that can't be called",
        "class batchstring: pass\n",
        &["which can't be called (it has no __call__)"],
    ),
    Mistake {
        logs: &["in setup"],
        ..Mistake::new(
            "setup raises",
            "class batchstring:\n    def setup(self):\n        raise RuntimeError('no CUDA device')\n    def __call__(self, i): pass\n",
            &["RuntimeError: no CUDA device"],
        )
    },
    Mistake {
        flags: &["--python-start-timeout-s", "3"],
        ..Mistake::new(
            "it never starts",
            "import threading\nprint('loading shard 3', flush=True)\nthreading.Event().wait()\n",
            &[
                "not ready within 3 s",
                "still importing",
                "raise --python-start-timeout-s",
            ],
        )
    },
    Mistake::new(
        "it ends itself",
        "import os\nos._exit(7)\n",
        &["exited with status 7"],
    ),
    Mistake::new(
        "it is killed",
        "import os, sys\nprint('allocating 80 GB', file=sys.stderr)\nos.kill(os.getpid(), 9)\n",
        &[
            "killed by SIGKILL",
            "lack of memory",
            "its last words: allocating 80 GB",
        ],
    ),
    Mistake {
        logs: &["Segmentation fault"],
        ..Mistake::new(
            "it crashes",
            "import os\nos.kill(os.getpid(), 11)\n",
            &[
                "killed by SIGSEGV",
                "its last words: Segmentation fault in \"/",
                "model.py\", line 2 in <module>",
            ],
        )
    },
    Mistake {
        flags: &["--python-bin", "/nowhere/python"],
        ..Mistake::new(
            "no Python",
            GOOD,
            &["can't run /nowhere/python", "--python-bin"],
        )
    },
    Mistake {
        flags: &["--python-bin", "false"],
        omits: "must not end its process",
        ..Mistake::new(
            "another program",
            GOOD,
            &[
                "false exited with status 1",
                "does not seem to be a Python",
                "--python-bin",
            ],
        )
    },
    Mistake {
        omits: "--canary",
        ..Mistake::new(
            "nothing returned",
            "def batchstring(inputs):\n    [text.upper() for text in inputs]\n",
            &["returned None instead of a list: is a return missing?"],
        )
    },
    Mistake::new(
        "a string returned",
        "def batchstring(inputs):\n    return 'x'\n",
        &["returned a str instead of a list"],
    ),
    Mistake::new(
        "a dict returned",
        "def batchstring(inputs):\n    return {}\n",
        &["returned a dict instead of a list"],
    ),
    Mistake {
        omits: "--canary",
        ..Mistake::new(
            "one output too many",
            "def batchstring(inputs):\n    return ['x'] * (len(inputs) + 1)\n",
            &["2 outputs for 1 input"],
        )
    },
    Mistake {
        omits: "--canary",
        ..Mistake::new(
            "vectors returned",
            "def batchstring(inputs):\n    return [[0.5] for _ in inputs]\n",
            &["a value of the type list for this input, not a string"],
        )
    },
    Mistake::new(
        "bytes returned",
        "def batchstring(inputs):\n    return [text.encode() for text in inputs]\n",
        &["type bytes for this input"],
    ),
    Mistake {
        logs: &["json.loads", "model.py"],
        ..Mistake::new(
            "the canary is refused",
            "import json\ndef batchstring(inputs):\n    return [json.loads(text)['q'] for text in inputs]\n",
            &[
                "failed on its canary, the input \"funicular canary\"",
                "JSONDecodeError",
                "set --canary",
            ],
        )
    },
];

fn why(server: &Server) -> String {
    let status = server.status();
    status["gpus"][0]["why"]
        .as_str()
        .expect("a reason")
        .to_owned()
}

fn make(mistake: &Mistake) {
    let model = Model::new(mistake.source);
    let target = mistake
        .function
        .strip_prefix('=')
        .map_or_else(|| model.target(mistake.function), str::to_owned);
    let mut server = start(&target, &[&["--gpus", "1"], mistake.flags].concat());
    server.wait_for(mistake.name, |server| {
        mistake.says.iter().all(|text| why(server).contains(text))
    });
    let reason = why(&server);
    assert!(!reason.contains(mistake.omits), "{reason}");
    // Logged once, as an error, with the reason.
    server.wait_log("gpu 0 is down: ");
    mistake.logs.iter().for_each(|text| server.wait_log(text));
    mistake.says.iter().for_each(|text| server.wait_log(text));
    assert_eq!(
        server.get("/v2/health/ready").status,
        503,
        "{}",
        mistake.name
    );
    assert_eq!(
        server.get("/v2/health/live").status,
        200,
        "{}",
        mistake.name
    );
    server.infer("x").expect_problem(503);
}

#[test]
fn what_can_not_be_served_is_said_with_what_to_do() {
    if !is_there("python3") {
        return;
    }
    const AT_ONCE: usize = 4;
    in_parallel(AT_ONCE, |lane| {
        AT_START.iter().skip(lane).step_by(AT_ONCE).for_each(make)
    });
}

/// What the function does with inputs, by their first word.
const FICKLE: &str = r#"
import ctypes, os, sys
def one(text):
    if text == "raise":
        raise ValueError("this is no question")
    if text == "number":
        return 7
    if text == "nothing":
        return None
    if text == "surrogate":
        return "a\ud800"
    if text == "tokens":
        return (text, -1)
    if text == "refuse":
        return ValueError("not with me")
    if text == "exit":
        sys.exit("enough")
    if text == "crash":
        os.kill(os.getpid(), 9)
    if text == "long":
        raise ValueError("x" * 100_000)
    return text.upper()
def batchstring(inputs):
    return [one(text) for text in inputs]
"#;

#[test]
fn what_goes_wrong_with_one_input_is_said_to_its_caller() {
    if !is_there("python3") {
        return;
    }
    let server = Model::new(FICKLE).serve(2, &[]);
    let cases = [
        ("raise", "ValueError: this is no question"),
        ("number", "a value of the type int for this input"),
        ("nothing", "a value of the type NoneType for this input"),
        ("surrogate", "lone surrogate U+D800 at position 1"),
        ("tokens", "tokens_used for this input is no whole number"),
        ("refuse", "ValueError: not with me"),
        ("exit", "SystemExit: enough"),
    ];
    for (input, says) in cases {
        let problem = server.infer(input).expect_problem(422);
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains(says), "{input}: {detail}");
    }
    let long = server.infer("long").expect_problem(422);
    assert!(long["detail"].as_str().expect("text").len() < 2_000);
    // One traceback for all that is raised in one place.
    server.wait_log("raise ValueError(\"this is no question\")");
    // It takes two workers with it, and then nobody runs it again.
    let crash = post("X-Request-Id: culprit-7\r\n", "crash");
    server.connect().request(crash).expect_problem(503);
    server.wait_log("killed by SIGKILL");
    server.wait_log("a second GPU failed while it ran them: culprit-7;");
    wait_for("their return", || server.infer("fine").status == 200);
}

#[test]
fn check_warns_of_what_is_not_there() {
    let output = crate::support::server::run(&[
        "check",
        "--python",
        "nowhere.py:f",
        "--python-bin",
        "nowhere/python",
    ]);
    assert!(output.status.success());
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(
        warnings.contains("/nowhere.py: no GPU comes into service before there is"),
        "{warnings}"
    );
    assert!(
        warnings.contains("/nowhere/python: name the Python to use"),
        "{warnings}"
    );
    let refused = crate::support::server::run(&["check", "--executor", "python"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no batch function is named"));
    for (target, says) in [
        (
            "model.pyx:f",
            "which is no Python file: the name of one ends in .py",
        ),
        ("model.py:f:g", "which has a colon too many"),
    ] {
        let refused = crate::support::server::run(&["check", "--python", target]);
        assert_eq!(refused.status.code(), Some(2), "{target}");
        let problem = String::from_utf8_lossy(&refused.stderr);
        assert!(problem.contains(says), "{problem}");
    }
}

#[test]
fn a_start_that_takes_long_is_warming_and_tells_how_far_it_is() {
    if !is_there("python3") {
        return;
    }
    let model = Model::new(
        "import os, time\nprint('loading shard 3 of 7', end='\\r')\nwhile not os.path.exists(os.environ['GATE']): time.sleep(0.01)\ndef batchstring(inputs):\n    return [text.upper() for text in inputs]\n",
    );
    let gate = model.path("gate");
    let variable = format!("GATE={}", gate.display());
    let mut server = start(
        &model.target(""),
        &["--gpus", "1", "--python-env", &variable],
    );
    let status = server.status();
    assert_eq!(
        (&status["ready"], &status["gpus"][0]["state"]),
        (&false.into(), &"warming".into())
    );
    server.wait_for("its progress", |server| {
        let why = why(server);
        why.contains("importing") && why.contains(" s; it printed: loading shard 3 of 7")
    });
    Client::connect(server.listen())
        .infer("x")
        .expect_problem(503);
    std::fs::write(gate, "").expect("written");
    crate::model::wait_all_ready(&mut server);
    server.infer("x").expect_output("x");
}
