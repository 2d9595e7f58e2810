"""Decodes a prompt with a pair from the hub, and says what the certificates were worth.

    python -m certspec.studies.examples.hub_pair --target Qwen/Qwen3-4B --draft Qwen/Qwen3-0.6B

The default pair is not run by our tests: it downloads 9 GB, and wants a GPU. With ``--bundled`` the
pair that comes with certspec is decoded, in seconds on a CPU."""

from __future__ import annotations

import argparse

import certspec as cs


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", default="Qwen/Qwen3-4B", help="directory, hub id or .gguf")
    parser.add_argument("--draft", default="Qwen/Qwen3-0.6B", help="the same")
    parser.add_argument("--bundled", action="store_true", help="the pair that certspec brings")
    parser.add_argument("--device", help="cuda where there is one (default: cpu)")
    parser.add_argument("--prompt", default="Tell me a story about a fox.")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args(arguments)

    models = () if given.bundled else (given.target, given.draft)
    pair = cs.load_pair(*models, device=given.device)
    print(pair)
    for rule in ("strict", "additive:0.3", "tree:4"):
        story = cs.generate(pair, given.prompt, rule, max_new_tokens=given.max_new_tokens)
        told = story.metrics
        print(
            f"{rule}: {told['mean_acceptance_length']:.2f} tokens a target pass, "
            f"{100 * told['certified_share']:.0f} % of the drafted positions certified, "
            f"{told['num_relaxed_tokens']} tokens that are not the target's"
        )
    for note in story.notes:  # what ran the models, and what was aligned
        print(f"note: {note}")


if __name__ == "__main__":
    main()
