"""What bench/ranks.py makes of its rows: medians over the rounds, goals held against them, tables in Markdown."""
import statistics

# Both train in f32 and add in other orders. Step by step the differences grow, most with batch norm; the first steps tell whether
# the two compute the same.
LOSS_STEPS = 5
LOSS_TOLERANCE = 1e-3
PREDICTION_TOLERANCE = 0.10
# Chunks of replicas' gradients, where they are cut.
CHUNK = ":chunk=131072"
# Messages of neighbouring small layers, where they share them.
SHARE = ":share=65536"


def median(rows, key):
    values = [row[key] for row in rows if key in row]
    return statistics.median(values) if values else None


def summarize(results):
    """{who: {plan: {"step_ms", "predicted_ms", ...}}}; plans that failed have "error"."""
    summary = {}
    for who, plans in results.items():
        summary[who] = {}
        for plan, rows in plans.items():
            done = [row for row in rows if "error" not in row]
            entry = {key: median(done, key) for key in ("step_ms", "mean_ms", "predicted_ms", "predicted_bubble_frac", "sent_bytes",
                                                        "planned_bytes", "measured_bytes", "link_latency_us", "link_mbyte_per_s",
                                                        "chosen_k", "planning_ms", "micro_batches")}
            entry = {key: value for key, value in entry.items() if value is not None}
            if done:
                entry["device"] = done[-1].get("device")
                entry["losses"] = done[-1]["losses"]
                entry["hash"] = done[-1].get("hash")
                entry["rounds_ms"] = [row["step_ms"] for row in done]
            else:
                entry["error"] = rows[-1]["error"]
            summary[who][plan] = entry
    return summary


def good(plans):
    return {plan: entry for plan, entry in plans.items() if "error" not in entry}


def best(plans):
    plans = good(plans)
    return min(plans, key=lambda plan: plans[plan]["step_ms"]) if plans else None


def loss_difference(summary):
    """The largest relative difference between the losses of any two plans, PyTorch's included; None: nothing to compare."""
    rows = [entry["losses"] for plans in summary.values() for plan, entry in good(plans).items() if "statistics" not in plan]
    if len(rows) < 2:
        return None
    return max(abs(a - b) / max(abs(b), 1e-9) for row in rows for a, b in zip(row[:LOSS_STEPS], rows[0]))


def judge(kind, summary, least_gain):
    """Goals: (text, value, least or most, is reached). least_gain: over wfbp, of the order that is best."""
    goals = []

    def at_least(text, value, least):
        goals.append({"goal": text, "value": value, "bound": f">= {least}", "ok": value >= least})

    def at_most(text, value, most):
        goals.append({"goal": text, "value": value, "bound": f"<= {most}", "ok": value <= most})

    ours, theirs = good(summary["ours"]), good(summary["torch"])
    off = {plan: abs(entry["predicted_ms"] / entry["step_ms"] - 1) for plan, entry in ours.items()}
    if off:
        plan = max(off, key=off.get)
        at_most(f"predicted beside measured, off by at most ({plan})", off[plan], PREDICTION_TOLERANCE)
    base = ours.get("gpipe")
    if kind == "pipeline" and base:
        reached = {plan: base["step_ms"] / entry["step_ms"] * entry["predicted_ms"] / base["predicted_ms"]
                   for plan, entry in ours.items() if plan != "gpipe"}
        if reached:
            plan = min(reached, key=reached.get)
            at_least(f"part of the simulated gain over gpipe that is reached, at least ({plan})", reached[plan], 0.95)
        if base.get("micro_batches") == 2:
            for plan, least in (("fast-forward", 1.29), ("modulo:g=2", 1.38)):
                if plan in ours:
                    at_least(f"{plan} over gpipe", base["step_ms"] / ours[plan]["step_ms"], least)
        if theirs:
            at_least("over PyTorch's best schedule", theirs[best(theirs)]["step_ms"] / ours[best(ours)]["step_ms"], 1.3)
    if kind == "replicas":
        base = min((e for p, e in ours.items() if p.startswith("wfbp")), key=lambda e: e["step_ms"], default=None)
        last = min((e for p, e in ours.items() if p.startswith("reverse") and "statistics" not in p),
                   key=lambda e: e["step_ms"], default=None)
        order = min((e for p, e in ours.items() if p.startswith(("reverse", "priority")) and "statistics" not in p),
                    key=lambda e: e["step_ms"], default=None)
        if base and order:
            at_least("priority or reverse-first-k over wfbp", base["step_ms"] / order["step_ms"], least_gain)
        if theirs and last:
            at_least("over PyTorch's best DDP", theirs[best(theirs)]["step_ms"] / last["step_ms"], 1.2)
        plain, observed = ours.get("reverse-first-k" + CHUNK), ours.get("reverse-first-k" + CHUNK + ":statistics")
        if plain and observed:
            at_most("cost of statistics", observed["step_ms"] / plain["step_ms"] - 1, 0.02)
    difference = loss_difference(summary)
    if difference is not None:
        at_most("losses: largest relative difference", difference, LOSS_TOLERANCE)
    hashes = {entry["hash"] for plan, entry in ours.items() if "statistics" not in plan}
    if ours:
        at_most("different weights after the last step, over leapgrad's plans", len(hashes), 1)
    return goals


def row(*cells, columns=0):
    texts = ["" if cell is None else str(cell) for cell in cells]
    return "| " + " | ".join(texts + [""] * (columns - len(texts))) + " |"


def plain_errors(summary):
    return [f"* {who} {plan}: {entry['error']}" for who, plans in summary.items() for plan, entry in plans.items() if "error" in entry]


def write_pipeline(summary):
    ours, theirs = good(summary["ours"]), good(summary["torch"])
    lines = [row("plan", "step, ms", "predicted, ms", "off", "bubble, simulated", "over gpipe", "simulated", "reached"),
             row(*["---"] + ["---:"] * 7)]
    base = ours.get("gpipe")
    for plan, e in ours.items():
        gain = base["step_ms"] / e["step_ms"] if base else None
        possible = base["predicted_ms"] / e["predicted_ms"] if base else None
        lines.append(row(plan, f"{e['step_ms']:.1f}", f"{e['predicted_ms']:.1f}", f"{100 * (e['predicted_ms'] / e['step_ms'] - 1):+.1f} %",
                         f"{100 * e['predicted_bubble_frac']:.1f} %", f"{gain:.2f}x" if base else "",
                         f"{possible:.2f}x" if base else "", f"{100 * gain / possible:.0f} %" if base else ""))
    base = theirs.get("gpipe")
    for plan, e in theirs.items():
        lines.append(row(f"PyTorch {plan}", f"{e['step_ms']:.1f}", "", "", "", f"{base['step_ms'] / e['step_ms']:.2f}x" if base else "",
                         columns=8))
    if ours and theirs:
        a, b = best(ours), best(theirs)
        lines += ["", f"Best: `{a}` {ours[a]['step_ms']:.1f} ms; PyTorch's `{b}` {theirs[b]['step_ms']:.1f} ms: "
                      f"**{theirs[b]['step_ms'] / ours[a]['step_ms']:.2f}x**."]
    return lines


def fastest(plans, prefix, without="statistics"):
    found = {plan: e for plan, e in plans.items() if plan.startswith(prefix) and without not in plan}
    return best(found)


def write_replicas(summary):
    ours, theirs = good(summary["ours"]), good(summary["torch"])
    lines = [row("plan", "step, ms", "predicted, ms", "off", "over the best wfbp", "simulated", "k"), row(*["---"] + ["---:"] * 6)]
    wfbp = fastest(ours, "wfbp")
    base = ours.get(wfbp)
    for plan, e in ours.items():
        lines.append(row(plan, f"{e['step_ms']:.1f}", f"{e['predicted_ms']:.1f}", f"{100 * (e['predicted_ms'] / e['step_ms'] - 1):+.1f} %",
                         f"{base['step_ms'] / e['step_ms']:.2f}x" if base else "",
                         f"{base['predicted_ms'] / e['predicted_ms']:.2f}x" if base else "",
                         int(e["chosen_k"]) if "chosen_k" in e else ""))
    for plan, e in theirs.items():
        lines.append(row(f"PyTorch {plan}", f"{e['step_ms']:.1f}", "", "", f"{base['step_ms'] / e['step_ms']:.2f}x" if base else "",
                         columns=7))
    priority, reverse = fastest(ours, "priority"), fastest(ours, "reverse")
    if base and priority and reverse:
        lines += ["", f"Without the barrier (`{priority}` over `{wfbp}`): **{base['step_ms'] / ours[priority]['step_ms']:.2f}x**; "
                      f"the order on top (`{reverse}` over `{priority}`): **{ours[priority]['step_ms'] / ours[reverse]['step_ms']:.2f}x**; "
                      f"together **{base['step_ms'] / ours[reverse]['step_ms']:.2f}x**."]
    if theirs and ours:
        a, b = best(ours), best(theirs)
        lines += ["", f"PyTorch's best, `{b}`, takes {theirs[b]['step_ms'] / ours[a]['step_ms']:.2f} times as long as `{a}`."]
    plain, observed = ours.get("reverse-first-k" + CHUNK), ours.get("reverse-first-k" + CHUNK + ":statistics")
    if plain and observed:
        lines += ["", f"Statistics for layer-wise rates cost {100 * (observed['step_ms'] / plain['step_ms'] - 1):+.1f} %."]
    return lines


def write_curve(summary, batch):
    ours = good(summary["ours"])
    chosen = next((int(e["chosen_k"]) for e in ours.values() if "chosen_k" in e), None)
    lines = [row("plan", "step, ms", "samples/s", "predicted, ms", ""), row("---", "---:", "---:", "---:", "---")]
    most = max((batch / e["step_ms"] for e in ours.values()), default=1.0)
    for plan, e in ours.items():
        bar = "#" * round(40 * batch / e["step_ms"] / most)
        mark = " chosen" if f":k={chosen}" in plan + ":" and plan.endswith(f"k={chosen}") else ""
        lines.append(row(plan, f"{e['step_ms']:.1f}", f"{1e3 * batch / e['step_ms']:.0f}", f"{e['predicted_ms']:.1f}", f"`{bar}`{mark}"))
    if chosen is not None:
        lines += ["", f"Chosen by the simulator: k = {chosen}."]
    return lines


def batch_of(case):
    return next(int(word[6:]) for word in case["args"] if word.startswith("batch="))


def write_case(name, case, summary, goals):
    link = next((e for e in good(summary["ours"]).values() if "link_mbyte_per_s" in e), {})
    lines = [f"### {name}", "", "`" + " ".join(case["model"] + case["args"]) + "`, link " + case["link"] +
             (f" (measured: {link['link_latency_us']:.0f} us, {link['link_mbyte_per_s']:.0f} MB/s), device {link['device']}"
              if link else ""), ""]
    lines += {"pipeline": write_pipeline, "replicas": write_replicas}[case["kind"]](summary) if case["kind"] != "curve" \
        else write_curve(summary, batch_of(case))
    missed = [g for g in goals if not g["ok"]]
    if missed:
        lines += ["", "Missed:", ""] + [f"* {g['goal']} {g['value']:.3g} ({g['bound']})" for g in missed]
    errors = plain_errors(summary)
    if errors:
        lines += ["", "Not run:", ""] + errors
    return lines + [""]
