//! The page: markup, style, script and data in one file, which loads nothing else.

use minijinja::{AutoEscape, Environment, Value, context};

use super::data::PageData;
use runner_spec::error::CommandError;
use runner_spec::safe_text::printable;

/// Every page begins with this text. A file that begins with it may be replaced by another report.
pub const PAGE_PREFIX: &str = "<!doctype html>\n<!-- a report of runner -->\n";

const TEMPLATE: &str = include_str!("../../../../templates/report/report.html.j2");
const STYLE: &str = include_str!("../../../../templates/report/report.css");

macro_rules! scripts {
    ($($name:literal)+) => { &[$(include_str!(concat!("../../../../templates/report/", $name, ".js"))),+] };
}

/// The parts of the script, in the order in which they are loaded: a part comes after those that it uses.
const SCRIPT: &[&str] = scripts!(
    "dom" "format" "scale" "state" "chart" "overview" "curves" "steptime" "evaluation" "samples" "timeline" "memory"
    "answer" "ladder" "sweep" "settings" "record" "report"
);

/// A page, and its content security policy, which the page states and a server repeats in a header.
#[derive(Debug, Clone)]
pub struct Page {
    pub html: String,
    pub policy: String,
}

impl Page {
    /// The page that shows `data`. If it is `served`, it asks its server for fresh data.
    ///
    /// # Errors
    /// If the data cannot be serialized, or the template fails.
    pub fn new(data: &PageData, served: bool) -> Result<Self, CommandError> {
        let json = escape_for_script(&serde_json::to_string(data)?);
        let script = SCRIPT.concat();
        // No text in the data can contain the nonce, because the nonce is a hash of the data.
        let mut hash = blake3::Hasher::new();
        for part in [&json, &script, STYLE] {
            hash.update(part.as_bytes());
        }
        let nonce = hash.finalize().to_hex()[..32].to_owned();
        let connect = if served { "'self'" } else { "'none'" };
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; \
             connect-src {connect}; base-uri 'none'; form-action 'none'"
        );
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        let failed = |error: minijinja::Error| CommandError::failure(format!("the page's template: {error}"));
        environment.add_template("report.html.j2", TEMPLATE).map_err(failed)?;
        let template = environment.get_template("report.html.j2").map_err(failed)?;
        let html = template.render(context! {
            title => data.title,
            policy => policy,
            nonce => nonce,
            served => served,
            style => Value::from_safe_string(STYLE.to_owned()),
            script => Value::from_safe_string(script),
            data => Value::from_safe_string(json),
        });
        let html = html.map_err(failed)?;
        Ok(Self { html: format!("{PAGE_PREFIX}{html}"), policy })
    }
}

/// JSON for a `<script>` element, with escapes for the characters that could end the element, or open another element or a comment. Characters
/// that hide what a text says, or end a line of script, become `�`.
fn escape_for_script(json: &str) -> String {
    let escape = |text: String, c: char| text.replace(c, &format!("\\u{:04x}", c as u32));
    ['<', '>', '&'].into_iter().fold(printable(json), escape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::{ReportRequest, read_page_data};

    const HOSTILE: &str = "</script><img src=x onerror=alert(1)><!-- & ";

    #[test]
    fn data_cannot_leave_its_element() {
        let json = serde_json::to_string(&format!("{HOSTILE}\u{2028}\u{202E}")).unwrap();
        let safe = escape_for_script(&json);
        assert!(!safe.contains(['<', '>', '&', '\u{2028}', '\u{202E}']), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), format!("{HOSTILE}\u{FFFD}\u{FFFD}"));
    }

    #[test]
    fn a_page_is_whole_and_its_text_is_text() {
        let data =
            read_page_data(&ReportRequest { title: Some(HOSTILE.to_owned()), ..ReportRequest::default() }).unwrap();
        let Page { html, policy } = Page::new(&data, false).unwrap();
        assert!(html.starts_with(PAGE_PREFIX));
        assert!(!html.contains("<img"), "the title is escaped in the markup and in the data");
        assert_eq!(html.matches("</script>").count(), html.matches("<script").count());
        assert!(policy.contains("connect-src 'none'") && policy.starts_with("default-src 'none'"));
    }

    #[test]
    fn a_page_asks_for_nothing() {
        let page = Page::new(&read_page_data(&ReportRequest::default()).unwrap(), false).unwrap();
        let own = page.html.replace("http://www.w3.org/", "").replace("url(#", "");
        for outside in ["http://", "https://", "url(", "@import", " src="] {
            assert!(!own.contains(outside), "the page asks for nothing: {outside}");
        }
    }

    #[test]
    fn a_served_page_may_ask_its_server() {
        let data = read_page_data(&ReportRequest::default()).unwrap();
        let page = Page::new(&data, true).unwrap();
        assert!(page.policy.contains("connect-src 'self'") && page.html.contains("data-served"));
    }
}
