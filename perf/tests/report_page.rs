//! The reports as people see them: opened in headless Chromium, on a desk and on a phone.
//!
//! A script that only this test adds measures what was laid out and writes what is wrong into the page: labels that overlap,
//! leave their drawing or are too small to read, and anything wider than the screen. Without a Chromium the layout tests say
//! so and pass; the tests of colours and of self-containedness need none.

mod sample_run;

use std::path::{Path, PathBuf};
use std::process::Command;

use funicular_perf::report;
use funicular_perf::result::RunResult;

/// Narrow and wide, in CSS pixels.
const WIDTHS: [u32; 3] = [390, 700, 1100];

/// Measures the laid-out page. Findings end up in `<pre id="findings">`, one a line; `checked` says that it ran.
const SCRIPT: &str = r##"<script>
const findings = [];
const shown = e => e.getClientRects().length > 0 && e.getBoundingClientRect().width > 0;
const name = e => e.tagName + '.' + e.getAttribute('class') + ' "' + e.textContent.slice(0, 30) + '"';
if (document.documentElement.scrollWidth > innerWidth)
  findings.push('page is ' + document.documentElement.scrollWidth + ' wide on a screen of ' + innerWidth);
for (const e of document.querySelectorAll('main *')) {
  if (!shown(e) || e.closest('.scroll') && !e.matches('.scroll') || e.closest('svg') && !e.matches('svg')) continue;
  const r = e.getBoundingClientRect();
  if (r.right > innerWidth + 1 || r.left < -1) findings.push('leaves the screen: ' + name(e));
}
let labels = 0;
for (const svg of document.querySelectorAll('svg.plot')) {
  if (!shown(svg)) continue;
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(e => [e, e.getBoundingClientRect()]);
  labels += texts.length;
  texts.forEach(([e, r], i) => {
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
      findings.push('leaves its drawing: ' + name(e) + ' in ' + svg.getAttribute('aria-label'));
    if (r.height < 11) findings.push('too small: ' + name(e) + ', ' + r.height + ' px');
    for (const [other, o] of texts.slice(i + 1)) {
      const wide = Math.min(r.right, o.right) - Math.max(r.left, o.left);
      const high = Math.min(r.bottom, o.bottom) - Math.max(r.top, o.top);
      if (wide > 0.5 && high > 2) findings.push('overlap: ' + name(e) + ' and ' + name(other) + ' in ' + svg.getAttribute('aria-label'));
    }
  });
}
if (document.body.dataset.owned || document.scripts.length !== 1) findings.push('text from outside ran as a script');
const out = document.createElement('pre');
out.id = 'findings';
out.textContent = 'checked ' + innerWidth + ' ' + labels + '\n' + findings.join('\n');
document.body.append(out);
</script></body>"##;

/// Every kind of page there is, by name.
fn pages() -> Vec<(&'static str, String)> {
    let runs: [(&str, RunResult); 5] = [
        ("steady", sample_run::steady()),
        ("spike", sample_run::spike()),
        ("night", sample_run::night()),
        ("hostile", sample_run::hostile()),
        ("nothing", sample_run::nothing()),
    ];
    let compared: Vec<RunResult> = runs.iter().map(|(_, run)| run.clone()).collect();
    let mut pages: Vec<(&str, String)> = runs
        .iter()
        .map(|(name, run)| (*name, report::html(run)))
        .collect();
    pages.push(("two runs", report::compare_html(&compared[..2])));
    pages.push(("all runs", report::compare_html(&compared)));
    pages
}

/// The first Chromium in the search path.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|candidate| candidate.is_file())
}

/// A page with `page` in a frame of each width, which is how wide the page then takes the screen to be: a browser window
/// can't be as narrow as a phone. Once all are laid out, their findings are copied into it.
fn framed(page: &str) -> String {
    let source = page
        .replace("</body>", SCRIPT)
        .replace('&', "&amp;")
        .replace('"', "&quot;");
    let frame = |width: u32| {
        format!(
            r#"<iframe style="border:0;width:{width}px;height:900px" srcdoc="{source}"></iframe>"#
        )
    };
    format!(
        r#"<!DOCTYPE html><meta charset="utf-8"><body>{}<script>
        addEventListener('load', () => {{
          for (const frame of document.querySelectorAll('iframe')) {{
            document.body.append(frame.contentDocument.getElementById('findings'));
            frame.remove();
          }}
        }});</script></body>"#,
        WIDTHS.map(frame).concat()
    )
}

/// The page's DOM after its scripts ran.
fn dom_of(chromium: &Path, page: &Path, profile: &Path) -> String {
    let output = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            // Containers often have next to nothing in /dev/shm.
            "--disable-dev-shm-usage",
            "--timeout=60000",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--window-size=1400,900", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the script found wrong with `page`, at each width.
fn findings(chromium: &Path, folder: &Path, page: &str) -> Vec<String> {
    let file = folder.join("page.html");
    std::fs::write(&file, framed(page)).expect("the page is written");
    let dom = dom_of(chromium, &file, &folder.join("profile"));
    let reports: Vec<&str> = dom
        .split(r#"<pre id="findings">"#)
        .skip(1)
        .filter_map(|rest| rest.split_once("</pre>"))
        .map(|(report, _)| report)
        .collect();
    assert_eq!(
        reports.len(),
        WIDTHS.len(),
        "chromium gave no findings: {dom:.2000}"
    );
    let mut wrong = Vec::new();
    for (report, width) in reports.into_iter().zip(WIDTHS) {
        let mut lines = report.lines();
        let checked = lines.next().unwrap_or_default();
        assert!(
            checked.starts_with(&format!("checked {width} ")),
            "{checked}"
        );
        wrong.extend(
            lines
                .filter(|l| !l.is_empty())
                .map(|l| format!("at {width}: {l}")),
        );
    }
    wrong
}

#[test]
fn labels_are_legible_and_nothing_overflows() {
    let Some(chromium) = chromium() else {
        eprintln!(
            "skipped: no chromium in the search path, so the report's layout was not checked"
        );
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut wrong = Vec::new();
    for (name, page) in pages() {
        let found = findings(&chromium, folder.path(), &page);
        wrong.extend(found.into_iter().map(|finding| format!("{name} {finding}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The check itself can fail: labels drawn onto each other are found, and so is a word too long for a phone.
#[test]
fn a_bad_page_is_found_out() {
    let Some(chromium) = chromium() else {
        eprintln!("skipped: no chromium in the search path");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = report::html(&sample_run::nothing());
    let text = r#"<text x="5" y="20">one label</text>"#;
    let bad = format!(
        r#"<svg class="plot" viewBox="0 0 300 30">{text}{text}</svg><p style="white-space:nowrap">{}</p></main>"#,
        "wide ".repeat(90)
    );
    let found = findings(&chromium, folder.path(), &page.replace("</main>", &bad)).join("\n");
    assert!(
        found.contains("overlap") && found.contains("page is"),
        "{found}"
    );
}

#[test]
fn pages_stand_alone() {
    for (name, page) in pages() {
        for outside in [
            " src=", " href=", "url(", "@import", "<script", "<link", "<iframe",
        ] {
            let found = tags(&page).any(|tag| tag.contains(outside));
            assert!(!found, "{name} holds {outside}");
        }
        assert!(
            !page.contains("NaN") && !page.contains("inf "),
            "{name} shows a number that is none"
        );
    }
}

/// Every `<…` up to its `>`, without the values of its attributes.
fn tags(page: &str) -> impl Iterator<Item = String> {
    page.split('<')
        .skip(1)
        .filter_map(|rest| rest.split_once('>'))
        .map(|(tag, _)| format!("<{}", tag.split('"').step_by(2).collect::<String>()))
}

#[test]
fn doubts_come_before_numbers() {
    let page = report::html(&sample_run::hostile());
    let place = |text: &str| {
        page.find(text)
            .unwrap_or_else(|| panic!("{text} is missing"))
    };
    assert!(place("Wrong answers") < place("The generator was the bottleneck"));
    assert!(place("The generator was the bottleneck") < place(r#"<dl class="tiles">"#));
}

/// WCAG: 4.5 for text, 3 for lines; measured on the style sheet that the page carries.
#[test]
fn colours_contrast_in_light_and_dark() {
    let page = report::html(&sample_run::nothing());
    let (light, dark) = page
        .split_once("prefers-color-scheme")
        .expect("two palettes");
    for (scheme, css) in [("light", light), ("dark", dark)] {
        let colour =
            |name: &str| luminance(css, name).unwrap_or_else(|| panic!("{scheme} has no {name}"));
        let against = |ink: &str, paper: &str| {
            let (a, b) = (colour(ink), colour(paper));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        for text in [
            "--ink",
            "--soft",
            "--c0",
            "--c1",
            "--c2",
            "--c3",
            "--c4",
            "--cn",
            "--cb",
            "--critical",
            "--good",
        ] {
            assert!(
                against(text, "--paper") >= 4.5,
                "{scheme} {text}: {}",
                against(text, "--paper")
            );
        }
        for (ink, paper) in [
            ("--soft", "--raised"),
            ("--ink", "--critical-bg"),
            ("--critical", "--critical-bg"),
            ("--warning", "--warning-bg"),
            ("--good", "--good-bg"),
            ("--on-b3", "--b3"),
            ("--on-b", "--b0"),
            ("--on-b", "--b1"),
            ("--on-b", "--b2"),
            ("--on-b", "--b4"),
        ] {
            assert!(
                against(ink, paper) >= 4.5,
                "{scheme} {ink} on {paper}: {}",
                against(ink, paper)
            );
        }
    }
}

/// Relative luminance of the first definition of `name` in `css`.
fn luminance(css: &str, name: &str) -> Option<f64> {
    let hex = css.split_once(&format!("{name}: #"))?.1.get(..6)?;
    let channel = |i: usize| -> Option<f64> {
        let value = f64::from(u8::from_str_radix(hex.get(i..i + 2)?, 16).ok()?) / 255.0;
        Some(if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        })
    };
    Some(0.2126 * channel(0)? + 0.7152 * channel(2)? + 0.0722 * channel(4)?)
}
