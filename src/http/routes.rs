//! What lives where. Pure; the document of `GET /openapi.json` lists the same, and a test compares them.
//!
//! A server and a worker differ in what they are asked to run, one input or a whole batch, and share the rest.

use super::reject::Rejection;

/// Something that a request can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `POST /v1/inference`, on a server
    Inference,
    /// `POST /internal/batch`, on a worker
    Batch,
    /// `GET /v2/health/live`
    Live,
    /// `GET /v2/health/ready`
    Ready,
    /// `GET /openapi.json`
    OpenApi,
    /// `GET /`
    Welcome,
}

/// What a data plane serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Single inputs, from callers.
    Inputs,
    /// Batches, from servers.
    Batches,
}

impl Service {
    /// The route that it is there for.
    pub const fn main_route(self) -> Route {
        match self {
            Service::Inputs => Route::Inference,
            Service::Batches => Route::Batch,
        }
    }

    /// Every route.
    pub const fn routes(self) -> [Route; 5] {
        [
            self.main_route(),
            Route::Live,
            Route::Ready,
            Route::OpenApi,
            Route::Welcome,
        ]
    }

    /// The document behind [`Route::OpenApi`].
    pub const fn openapi(self) -> &'static str {
        match self {
            Service::Inputs => include_str!("openapi.json"),
            Service::Batches => include_str!("openapi_worker.json"),
        }
    }

    /// The text behind [`Route::Welcome`]; `authority` is the address to show, and callers may need a key.
    pub fn welcome(self, authority: &str, needs_key: bool) -> String {
        let path = self.main_route().path();
        let key = if needs_key {
            " -H 'Authorization: Bearer KEY'"
        } else {
            ""
        };
        let (what, body) = match self {
            Service::Inputs => (
                "one string in, its own answer out, batched onto GPUs in between",
                r#"{"input": "hello"}"#,
            ),
            Service::Batches => (
                "a worker, which runs the batches of a server elsewhere",
                r#"{"batch_id": "try-1", "requests": [{"request_id": "1", "input": "hello"}]}"#,
            ),
        };
        format!(
            "Funicular: {what}.\n\n\
             curl -s http://{authority}{path} -H 'Content-Type: application/json'{key} -d '{body}'\n\n\
             GET /openapi.json describes the rest.\n"
        )
    }
}

impl Route {
    /// Its path.
    pub const fn path(self) -> &'static str {
        match self {
            Route::Inference => "/v1/inference",
            Route::Batch => "/internal/batch",
            Route::Live => "/v2/health/live",
            Route::Ready => "/v2/health/ready",
            Route::OpenApi => "/openapi.json",
            Route::Welcome => "/",
        }
    }

    /// The methods it takes, as they stand in `Allow`.
    pub const fn allow(self) -> &'static str {
        match self {
            Route::Inference | Route::Batch => "POST",
            Route::Live | Route::Ready | Route::OpenApi | Route::Welcome => "GET, HEAD",
        }
    }

    /// Whether it takes a body, which is JSON.
    pub const fn takes_body(self) -> bool {
        matches!(self, Route::Inference | Route::Batch)
    }

    /// The route of a request.
    ///
    /// # Errors
    ///
    /// `NoRoute` or `MethodNotAllowed`.
    pub fn find(service: Service, method: &str, path: &str) -> Result<Route, Rejection> {
        let route = service
            .routes()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_by_path_and_method() {
        assert_eq!(
            Route::find(Service::Inputs, "POST", "/v1/inference"),
            Ok(Route::Inference)
        );
        assert_eq!(Route::find(Service::Inputs, "GET", "/"), Ok(Route::Welcome));
        assert_eq!(
            Route::find(Service::Inputs, "HEAD", "/v2/health/live"),
            Ok(Route::Live)
        );
        for path in ["/nope", "", "*", "/v1/inference/", "//", "/V1/inference"] {
            assert_eq!(
                Route::find(Service::Inputs, "GET", path),
                Err(Rejection::NoRoute),
                "{path}"
            );
        }
        for method in ["GET", "HEAD", "BREW", "post", ""] {
            let refused = Route::find(Service::Inputs, method, "/v1/inference");
            assert_eq!(refused, Err(Rejection::MethodNotAllowed { allow: "POST" }));
        }
    }

    #[test]
    fn a_worker_runs_batches_and_no_single_inputs() {
        let find = |path| Route::find(Service::Batches, "POST", path);
        assert_eq!(find("/internal/batch"), Ok(Route::Batch));
        assert_eq!(find("/v1/inference"), Err(Rejection::NoRoute));
        let on_a_server = Route::find(Service::Inputs, "POST", "/internal/batch");
        assert_eq!(on_a_server, Err(Rejection::NoRoute));
    }

    const SERVICES: [Service; 2] = [Service::Inputs, Service::Batches];

    #[test]
    fn the_openapi_documents_list_exactly_the_routes() {
        for service in SERVICES {
            let document: serde_json::Value =
                serde_json::from_str(service.openapi()).expect("valid JSON");
            assert_eq!(document["openapi"], "3.1.0");
            let paths = document["paths"].as_object().expect("an object");
            assert_eq!(paths.len(), service.routes().len());
            for route in service.routes() {
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
    }

    #[test]
    fn every_reference_in_the_openapi_documents_leads_somewhere() {
        for service in SERVICES {
            let document: serde_json::Value =
                serde_json::from_str(service.openapi()).expect("valid JSON");
            let references: Vec<_> = service.openapi().split("\"$ref\": \"#").skip(1).collect();
            assert!(references.len() > 5);
            for rest in references {
                let pointer = rest.split('"').next().expect("a quote follows");
                assert!(document.pointer(pointer).is_some(), "{pointer}");
            }
        }
    }

    #[test]
    fn the_welcome_texts_have_a_line_to_paste() {
        let text = Service::Inputs.welcome("127.0.0.1:8080", false);
        assert!(text.contains("curl -s http://127.0.0.1:8080/v1/inference "));
        assert!(text.contains("-d '{\"input\": \"hello\"}'"));
        assert!(!text.contains("Authorization"));
        let text = Service::Batches.welcome("127.0.0.1:8081", true);
        assert!(text.contains("curl -s http://127.0.0.1:8081/internal/batch "));
        assert!(text.contains(" -H 'Authorization: Bearer KEY' -d"));
    }
}
