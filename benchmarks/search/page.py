"""The tables of docs/service/index.md and filters.md, out of the results of the search and scale benchmarks.

`python -m benchmarks.search.page` writes each table between its marks; a result that is not there leaves its table.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.harness.machine import load, results
from benchmarks.harness.pages import DOCS, source, with_block

INDEX, FILTERS = (DOCS / "service" / name for name in ("index.md", "filters.md"))
END = "<!-- /table -->"


def page_with_tables(text: str, tables: dict[str, Callable[[dict[str, Any]], str]], *, marks: bool = True) -> str:
    """The text of a page with its tables; unless `marks` is False, old ones have a dagger."""
    for name, table in tables.items():
        if name in results():
            block = f"{table(load(name))}\n\n{source(name, marks=marks)}\n"
            text = with_block(text, f"<!-- table: {name} -->\n", block, END)
    return text


def write_pages() -> None:
    """Writes the tables into both pages."""
    for page, tables in PAGES.items():
        page.write_text(page_with_tables(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def index(result: dict[str, Any]) -> str:
    """Ours and the fastest of each library, for each form of asking."""
    rows = [result["finals"][0]]
    for library in dict.fromkeys(each["library"] for each in result["finals"][1:]):
        for form in ("single", "batch"):
            best = max((each for each in result["finals"] if each["library"] == library), key=lambda each: each[form])
            rows += [] if best in rows else [best]
    lines = [
        "| index | recall@100 | queries/s, one by one | in batches | build | bytes an item |",
        "|---|---|---|---|---|---|",
    ]
    for each in rows:
        ours = each["library"] == "ours"
        built = result["builds"]["ours" if ours else f"{each['library']} {each['name']}"]
        settings = result["index"]["parameters"] if ours else each["settings"]
        searched = ("leaves_searched", "rescored") if ours else settings
        shown = ", ".join(f"{name} {settings[name]}" for name in searched)
        what = "`towers index`" if ours else f"{each['library']} {each['name']}"
        size = f"{built['bytes_an_item']:g}" + (" + the shared vectors" if ours else "")
        lines.append(
            f"| {what}: {shown} | {each['recall']:.4f} | {each['single']:,.0f} | {each['batch']:,.0f} | "
            f"{built['build_s']:,.0f} s ({built['build_processor_s']:,.0f} s of processors) | {size} |"
        )
    return "\n".join(lines)


def engines(result: dict[str, Any]) -> str:
    """Each engine at its fastest settings that reach the target, and what it did with damaged files."""
    lines = [
        "| engine | one by one, at recall | of hnswlib | in batches, at recall | of hnswlib | build | bytes an item | "
        "altered in one place |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for engine, rate in result["rates"].items():
        chosen = result["finalists"][engine]
        built = result["builds"][engine][chosen["single"]["name"]]
        single, batch = (
            f"{rate[form]:,.0f}, {chosen[form]['recall']:.3f} | {result['of_hnswlib'][form][engine]:.2f}"
            for form in ("single", "batch")
        )
        altered = [f"{end.partition(': ')[2]}: {n}" for end, n in result["damages"][engine].items() if "altered" in end]
        lines.append(
            f"| {engine} | {single} | {batch} | {built['build_s']:,.0f} s ({built['build_processor_s']:,.0f} s of "
            f"processors) | {built['bytes_an_item']:g} | {', '.join(altered)} |"
        )
    return "\n".join(lines)


def bulk(result: dict[str, Any]) -> str:
    """Users per second of `towers recall` and of the bare search."""
    lines = [
        "| bundle | users | k | `towers recall`, users/s | `search_batched` | ratio | `…_parallel` | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in result["bundles"].items():
        lines.append(
            f"| {name} | {each['users']:,} | {each['k']} | {each['users_per_s']:,.0f} | "
            f"{each['bare_users_per_s']:,.0f} | {each['ratio']:.2f} | {each['parallel_users_per_s']:,.0f} | "
            f"{each['ratio_to_parallel']:.2f} |"
        )
    return "\n".join(lines)


def memory(result: dict[str, Any]) -> str:
    """What a process holds alone, and what it shares."""
    lines = ["| vectors | process | private | shared with others | all of it |", "|---|---|---|---|---|"]
    for kind, bundle in result["bundles"].items():
        for name, each in bundle["rows"].items():
            parts = (f"{each[part] / 1e6:,.0f} MB" for part in ("private", "shared", "rss"))
            lines.append("| " + " | ".join([kind, name, *parts]) + " |")
    sizes = result["sizes"]
    added = ", ".join(
        f"{each['one_more_worker_adds_bytes'] / 1e6:,.0f} MB with {kind}" for kind, each in result["bundles"].items()
    )
    return "\n".join(lines) + (
        f"\n\n{sizes['items']:,} items x {sizes['dimension']}, {sizes['users']:,} users. One more worker adds "
        f"{added}: what only it holds, of three workers."
    )


def vectors(result: dict[str, Any]) -> str:
    """Bytes, recall and the time of a query, a column for each kind of vectors."""
    rows, sizes = result["rows"].values(), result["sizes"]
    lines = [
        f"| {sizes['items']:,} vectors x {sizes['dimension']}, k = {sizes['k']} | {' | '.join(result['rows'])} |",
        "|---" * (1 + len(rows)) + "|",
    ]
    for title, cells in {
        "MB": [f"{each['bytes'] / 1e6:.1f}" for each in rows],
        "of float32's first, by exact search": [f"{each['exact_found']:.4f}" for each in rows],
        f"the same, by ScaNN ({result['leaves_searched']} leaves)": [f"{each['scann_found']:.4f}" for each in rows],
        "a query by ScaNN, µs": [f"{each['scann_us']:.0f}" for each in rows],
        "a query by exact search, ms": [f"{each['exact_ms']:.1f}" for each in rows],
    }.items():
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def filters(result: dict[str, Any]) -> str:
    """Recall and latency behind each filter, a row for each way in which it may know the query."""
    kinds = {
        "independent": "independent of the vectors",
        "cluster": "by cluster",
        "direction": "by a direction of space",
    }
    runs = result["filters"]
    shares = list(dict.fromkeys(name.partition(", ")[2] for name in runs))
    lines = [
        f"| filter | {' | '.join(f'{float(share[:-1]):g} % pass' for share in shares)} |",
        "|---" * (1 + len(shares)) + "|",
    ]
    for kind, title in kinds.items():
        cells = (_recall_and_ms(runs[f"{kind}, {share}"]) for share in shares)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, f"| no filter | {_recall_and_ms(result['no_filter'])} |" + " |" * (len(shares) - 1)])


def _recall_and_ms(run: dict[str, float]) -> str:
    median, late = (float(f"{run[name]:.2g}") for name in ("p50_ms", "p95_ms"))
    return f"{run['recall']:.3f}, {median:g} / {late:g} ms"


PAGES: dict[Any, dict[str, Callable[[dict[str, Any]], str]]] = {
    INDEX: {
        "index": index,
        "engines": engines,
        "engines_million": engines,
        "vectors": vectors,
        "bulk_recall": bulk,
        "worker_memory": memory,
    },
    FILTERS: {"filters": filters},
}

if __name__ == "__main__":
    write_pages()
