-- wrk -s perf/wrk/post.lua: one inference request, the same each time.
wrk.method = "POST"
wrk.path = "/v1/inference"
wrk.body = '{"input": "What is the capital of France?"}'
wrk.headers["Content-Type"] = "application/json"
