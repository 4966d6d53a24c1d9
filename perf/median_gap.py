#!/usr/bin/env python3
"""Median gap between batches, in ms, from a /metrics page on standard input: all GPUs' histograms added up, the median
interpolated within its bucket."""

import re
import sys

buckets = {}
for line in sys.stdin:
    found = re.match(r'funicular_batch_gap_seconds_bucket\{.*le="([^"]+)".*\} (\S+)', line)
    if found:
        bound = float("inf") if found[1] == "+Inf" else float(found[1])
        buckets[bound] = buckets.get(bound, 0) + float(found[2])
bounds = sorted(buckets)
half = buckets[bounds[-1]] / 2 if bounds else 0
low, count = 0.0, 0.0
for bound in bounds:
    if buckets[bound] >= half and buckets[bound] > count:
        print("%.3f" % ((low + (min(bound, 1.0) - low) * (half - count) / (buckets[bound] - count)) * 1000))
        break
    low, count = bound, buckets[bound]
else:
    print("nan")
