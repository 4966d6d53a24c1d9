//! The few HTML shapes that reports are made of: sections, figures, tables, tiles. All text is escaped here.

use super::chart::Slot;
use super::escape;

/// The content of a table cell, as plain text.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Words, to the left.
    Text(String),
    /// Words that explain, left out on a phone.
    Note(String),
    /// A number, to the right.
    Number(String),
    /// A number of lesser interest, left out on a phone.
    Detail(String),
    /// A name with the colour of its lines.
    Named(String, Slot),
    /// A number that should worry the reader.
    Alarm(String),
    /// A number that should please the reader.
    Good(String),
}

impl Cell {
    fn class(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Named(..) => "text",
            Self::Note(_) => "text detail",
            Self::Number(_) => "number",
            Self::Detail(_) => "number detail",
            Self::Alarm(_) => "number alarm",
            Self::Good(_) => "number fine",
        }
    }

    fn content(&self) -> String {
        match self {
            Self::Text(text)
            | Self::Note(text)
            | Self::Number(text)
            | Self::Detail(text)
            | Self::Alarm(text)
            | Self::Good(text) => escape::html(text),
            Self::Named(text, slot) => {
                let (class, text) = (slot.class(), escape::html(text));
                format!(
                    r#"<span class="named"><span class="dot {class}"></span><span>{text}</span></span>"#
                )
            }
        }
    }
}

/// A table; the class of each head cell is that of the first row's cell below it.
///
/// The first column is the row's heading.
pub fn table(heads: &[&str], rows: &[Vec<Cell>]) -> String {
    if rows.is_empty() {
        return paragraph("empty", "Nothing to list.");
    }
    let head: String = heads
        .iter()
        .enumerate()
        .map(|(i, head)| {
            let class = rows
                .first()
                .and_then(|row| row.get(i))
                .map_or("text", Cell::class);
            let class = class.trim_end_matches(" alarm").trim_end_matches(" fine");
            format!(
                r#"<th scope="col" class="{class}">{}</th>"#,
                escape::html(head)
            )
        })
        .collect();
    let body: String = rows.iter().map(|row| table_row(row)).collect();
    format!(
        r#"<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"#
    )
}

fn table_row(row: &[Cell]) -> String {
    let cells: String = row
        .iter()
        .enumerate()
        .map(|(i, cell)| {
            let (class, content) = (cell.class(), cell.content());
            if i == 0 {
                format!(r#"<th scope="row" class="{class}">{content}</th>"#)
            } else {
                format!(r#"<td class="{class}">{content}</td>"#)
            }
        })
        .collect();
    format!("<tr>{cells}</tr>")
}

/// A section of the page with ready-made `body`.
pub fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{}</h2>{body}</section>", escape::html(title))
}

/// A paragraph of plain text.
pub fn paragraph(class: &str, text: &str) -> String {
    format!(r#"<p class="{class}">{}</p>"#, escape::prose(text))
}

/// A figure: ready-made `body`, and what to know to read it.
pub fn figure(body: &str, caption: &str) -> String {
    let caption = if caption.is_empty() {
        String::new()
    } else {
        format!("<figcaption>{}</figcaption>", escape::prose(caption))
    };
    format!("<figure>{body}{caption}</figure>")
}

/// A headline number.
pub fn tile(name: &str, value: &str, unit: &str, note: &str) -> String {
    format!(
        r#"<div class="tile"><dt>{}</dt><dd><strong>{}</strong> <span class="unit">{}</span><small>{}</small></dd></div>"#,
        escape::html(name),
        escape::html(value),
        escape::html(unit),
        escape::prose(note)
    )
}

/// A box nobody scrolls past. `level` is `critical` or `warning`.
pub fn alert(level: &str, title: &str, texts: &[String]) -> String {
    let texts: String = texts.iter().map(|text| paragraph("", text)).collect();
    format!(
        r#"<aside class="alert {level}" role="alert"><h2>{}</h2>{texts}</aside>"#,
        escape::html(title)
    )
}

/// Facts as a definition list, unknown ones left out; `true` sets a value in the fixed-width font.
pub fn facts(rows: &[(&str, String, bool)]) -> String {
    let rows: String = rows
        .iter()
        .filter(|(_, value, _)| !value.is_empty())
        .map(|(name, value, code)| {
            let value = if *code {
                format!("<code>{}</code>", escape::html(value))
            } else {
                escape::prose(value)
            };
            format!("<dt>{}</dt><dd>{value}</dd>", escape::html(name))
        })
        .collect();
    format!(r#"<dl class="facts">{rows}</dl>"#)
}

/// A whole page around ready-made `body`: nothing is fetched, no script is needed.
pub fn page(title: &str, body: &str) -> String {
    format!(
        concat!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
            "<meta name=\"color-scheme\" content=\"light dark\">\n",
            "<meta name=\"generator\" content=\"funicular-perf {version}\">\n",
            "<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
        ),
        version = env!("CARGO_PKG_VERSION"),
        title = escape::html(title),
        style = include_str!("style.css"),
        body = body
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        let evil = "<script>\"'&".to_owned();
        let rows = vec![vec![
            Cell::Named(evil.clone(), Slot::Neutral),
            Cell::Number(evil.clone()),
        ]];
        let pieces = [
            table(&["<b>", "y"], &rows),
            section(&evil, ""),
            figure("", &evil),
            tile(&evil, &evil, &evil, &evil),
            alert("warning", &evil, std::slice::from_ref(&evil)),
            facts(&[("x", evil.clone(), true)]),
            page(&evil, ""),
        ];
        for piece in pieces {
            assert!(
                !piece.contains("<script") && !piece.contains("<b>"),
                "{piece}"
            );
        }
    }
}
