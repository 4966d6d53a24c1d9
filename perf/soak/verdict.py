"""Whether a soak passed. Pure: samples and counts in, findings out."""

# The line is drawn through what comes after this part of the run, or after so many seconds if that is less.
WARM_UP_PART, WARM_UP_MAX_S = 0.25, 120
# In less than this, a worker that was killed early and is back late looks like growth: then no trend is judged.
TREND_MIN_S = 50

MIB = 1 << 20
# What may grow over the whole run, by how much: so much, or this part of the mean.
GROWTH_MAX = {
    "processes": (1, 0),
    "server_threads": (1, 0),
    "server_descriptors": (3, 0),
    "server_bytes": (4 * MIB, 0.05),
    "all_bytes": (16 * MIB, 0.05),
}
# What callers may be told while workers fail: shed, failed on the retry, too late.
ALLOWED = {"200", "429", "503", "504"}


def slope(points):
    """The least-squares slope of (x, y) points."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def trends(samples):
    """For each thing that is sampled: its mean and its growth over the run after the warm-up, and what it may grow by."""
    begin, end = samples[0]["at_s"], samples[-1]["at_s"]
    warm = begin + min(WARM_UP_PART * (end - begin), WARM_UP_MAX_S)
    settled = [sample for sample in samples if sample["at_s"] >= warm]
    found = {}
    for name, (least, part) in GROWTH_MAX.items():
        points = [(sample["at_s"], sample[name]) for sample in settled]
        mean = sum(y for _, y in points) / len(points)
        found[name] = {
            "mean": mean,
            "growth": slope(points) * (end - warm),
            "allowed": max(least, part * mean),
        }
    return found


def has_trend(samples):
    """Whether the run was long enough to tell growth from chance."""
    return samples[-1]["at_s"] - samples[0]["at_s"] >= TREND_MIN_S


def kept(before, after):
    """What there is more of after the load than there was before it, in words."""
    names = ("processes", "server_threads", "server_descriptors")
    more = [name for name in names if after[name] > before[name]]
    return [f"{name}: {before[name]} before the load, {after[name]} after it" for name in more]


def findings(samples, before, after, load, counted, raised, exit_code, left, errors_max):
    """Everything that is wrong, in words; nothing if the soak passed. `raised`: how often the function raised."""
    wrong = []
    for name, trend in trends(samples).items():
        if has_trend(samples) and trend["growth"] > trend["allowed"]:
            wrong.append(f"{name} grew by {trend['growth']:,.1f} (allowed: {trend['allowed']:,.1f})")
    wrong += kept(before, after)
    totals, mismatches = load["totals"], load["mismatches"]
    if any(mismatches.values()):
        wrong.append(f"answers that were not the caller's own, or came twice: {mismatches}")
    answered = totals["ok"] + totals["errors"]
    if answered != totals["sent"]:
        wrong.append(f"{totals['sent']} requests were sent, {answered} answered")
    if counted != totals["sent"]:
        wrong.append(f"{totals['sent']} requests were sent, the server counted {counted:.0f}")
    odd = {status: count for status, count in statuses(load).items() if status not in ALLOWED}
    # Whose input ran alone when the function raised is rightly told so.
    if odd.get("422", 0) <= raised:
        odd.pop("422", None)
    if odd:
        wrong.append(f"callers were told what nobody may be told: {odd}")
    if totals["errors"] > errors_max * totals["sent"]:
        wrong.append(f"{totals['errors']} of {totals['sent']} requests failed (allowed: {errors_max:.2%})")
    if exit_code != 0:
        wrong.append(f"the server exited with {exit_code} after SIGTERM")
    if left:
        wrong.append("processes that outlived their program: " + "; ".join(left))
    return wrong


def statuses(load):
    """How many requests ended with which status."""
    counts = {}
    for tier in load["tiers"]:
        for status in tier["statuses"]:
            counts[status["status"]] = counts.get(status["status"], 0) + status["count"]
    return counts


def report(samples, wrong, load, troubles):
    """The verdict for the terminal."""
    summary = load["latency"]["corrected"]["summary"]
    lines = [
        f"{load['totals']['sent']:,} requests, by status: {statuses(load)}; "
        f"p50 {summary['p50_ms']:.1f}, p99 {summary['p99_ms']:.1f}, max {summary['max_ms']:.1f} ms",
        f"troubles: {troubles or 'none'}",
        "",
        "| sampled | mean | growth over the run | allowed |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, trend in trends(samples).items():
        unit = MIB if name.endswith("bytes") else 1
        label = name.replace("bytes", "MiB").replace("_", " ")
        figures = (trend[key] / unit for key in ("mean", "growth", "allowed"))
        lines.append(f"| {label} | " + " | ".join(f"{figure:,.2f}" for figure in figures) + " |")
    if not has_trend(samples):
        lines += ["", f"too short to judge growth, which takes {TREND_MIN_S} s"]
    lines += ["", *(f"FAILED: {finding}" for finding in wrong)] if wrong else ["", "passed"]
    return "\n".join(lines)
