//! What lives where. Pure; the document of `GET /openapi.json` lists the same, and a test compares them.

use super::reject::Rejection;

/// Something that a request can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `POST /v1/inference`
    Inference,
    /// `GET /v2/health/live`
    Live,
    /// `GET /v2/health/ready`
    Ready,
    /// `GET /openapi.json`
    OpenApi,
    /// `GET /`
    Welcome,
}

/// The document behind [`Route::OpenApi`].
pub const OPENAPI: &str = include_str!("openapi.json");

impl Route {
    /// Every route.
    pub const ALL: [Route; 5] = [
        Route::Inference,
        Route::Live,
        Route::Ready,
        Route::OpenApi,
        Route::Welcome,
    ];

    /// Its path.
    pub const fn path(self) -> &'static str {
        match self {
            Route::Inference => "/v1/inference",
            Route::Live => "/v2/health/live",
            Route::Ready => "/v2/health/ready",
            Route::OpenApi => "/openapi.json",
            Route::Welcome => "/",
        }
    }

    /// The methods it takes, as they stand in `Allow`.
    pub const fn allow(self) -> &'static str {
        match self {
            Route::Inference => "POST",
            Route::Live | Route::Ready | Route::OpenApi | Route::Welcome => "GET, HEAD",
        }
    }

    /// The route of a request.
    ///
    /// # Errors
    ///
    /// `NoRoute` or `MethodNotAllowed`.
    pub fn find(method: &str, path: &str) -> Result<Route, Rejection> {
        let route = Route::ALL
            .into_iter()
            .find(|route| route.path() == path)
            .ok_or(Rejection::NoRoute)?;
        if route.allow().split(", ").any(|allowed| allowed == method) {
            Ok(route)
        } else {
            Err(Rejection::MethodNotAllowed {
                allow: route.allow(),
            })
        }
    }
}

/// The text behind [`Route::Welcome`]; `authority` is the address to show, and callers may need a key.
pub fn welcome(authority: &str, needs_key: bool) -> String {
    let path = Route::Inference.path();
    let key = if needs_key {
        " -H 'Authorization: Bearer KEY'"
    } else {
        ""
    };
    format!(
        "Funicular: one string in, its own answer out, batched onto GPUs in between.\n\n\
         curl -s http://{authority}{path} -H 'Content-Type: application/json'{key} -d '{{\"input\": \"hello\"}}'\n\n\
         GET /openapi.json describes the rest.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_by_path_and_method() {
        assert_eq!(Route::find("POST", "/v1/inference"), Ok(Route::Inference));
        assert_eq!(Route::find("GET", "/"), Ok(Route::Welcome));
        assert_eq!(Route::find("HEAD", "/v2/health/live"), Ok(Route::Live));
        for path in ["/nope", "", "*", "/v1/inference/", "//", "/V1/inference"] {
            assert_eq!(Route::find("GET", path), Err(Rejection::NoRoute), "{path}");
        }
        for method in ["GET", "HEAD", "BREW", "post", ""] {
            let refused = Route::find(method, "/v1/inference");
            assert_eq!(refused, Err(Rejection::MethodNotAllowed { allow: "POST" }));
        }
    }

    #[test]
    fn the_openapi_document_lists_exactly_the_routes() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).expect("valid JSON");
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().expect("an object");
        assert_eq!(paths.len(), Route::ALL.len());
        for route in Route::ALL {
            let methods = paths[route.path()].as_object().expect("an object");
            // HEAD goes without saying where there is GET.
            let listed: Vec<_> = methods.keys().map(|method| method.to_uppercase()).collect();
            let taken: Vec<_> = route
                .allow()
                .split(", ")
                .filter(|&method| method != "HEAD")
                .collect();
            assert_eq!(listed, taken, "{}", route.path());
        }
    }

    #[test]
    fn every_reference_in_the_openapi_document_leads_somewhere() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).expect("valid JSON");
        let references: Vec<_> = OPENAPI.split("\"$ref\": \"#").skip(1).collect();
        assert!(references.len() > 10);
        for rest in references {
            let pointer = rest.split('"').next().expect("a quote follows");
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    #[test]
    fn the_welcome_text_has_a_line_to_paste() {
        let text = welcome("127.0.0.1:8080", false);
        assert!(text.contains("curl -s http://127.0.0.1:8080/v1/inference "));
        assert!(text.contains("-d '{\"input\": \"hello\"}'"));
        assert!(!text.contains("Authorization"));
        assert!(welcome("a:1", true).contains(" -H 'Authorization: Bearer KEY' -d"));
    }
}
