"""The templates and word lists that prompts of the bundled pair's corpus are drawn from.

``Tell me a short story about {name} and a {quality} {thing}.`` becomes, for example, "Tell me a
short story about Ivy and a gentle map."."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["CREATURES", "FUNCTIONS", "KINDS", "NAMES", "OBJECTS", "QUALITIES", "draw_prompts"]


def _listed(text: str) -> tuple[str, ...]:
    """The comma-separated entries of a word list; line breaks count as spaces."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


NAMES = _listed(
    """
    Amy, Dan, Elsa, Emma, Finn, Ivy, Jack, Kate, Kofi, Lily, Mia, Nina, Omar, Pip, Rosie, Sam,
    Sara, Tim
    """
)
CREATURES = _listed(
    """
    bear, butterfly, cat, dog, dragon, elephant, fox, goat, hedgehog, lion, monkey, owl, rabbit,
    snail, squirrel, whale
    """
)
OBJECTS = _listed(
    """
    balloon, blanket, bridge, bucket, castle, cloud, kite, ladder, lamp, letter, map, mirror,
    picture, shell, star, tent, train, wagon
    """
)
QUALITIES = _listed(
    """
    brave, clever, cold, curious, gentle, golden, grumpy, happy, hungry, kind, lonely, noisy, old,
    playful, quiet, shy, sleepy, tiny
    """
)
WISHES = _listed(
    """
    cross the river, find a friend, learn to dance, read a book, climb a hill, bake a cake, go
    home, say sorry
    """
)
LESSONS = _listed(
    """
    ask for help, tell the truth, share with others, never give up, say thank you, listen to your
    parents
    """
)
TOPICS = _listed(
    """
    a battery, a bridge, a fossil, a glacier, a magnet, a planet, a rainbow, a shadow, an
    ecosystem, bread, friction, light, memory, money, music, pollination, sound, sugar, the brain,
    the internet, the moon
    """
)
TASKS = _listed(
    """
    bake bread, boil an egg, build a kite, clean a window, draw a cat, fold a shirt, grow
    tomatoes, learn a new word, pack a bag, plan a trip, play chess, save money, sleep better, tie
    my shoes, train a dog, write a letter
    """
)
FUNCTIONS = _listed(
    """
    adds two numbers, checks if a number is prime, computes the average of a list, counts words in
    a sentence, finds the maximum of a list, flattens a nested list, reverses a string, sorts a
    list of numbers, transposes a matrix
    """
)


def _story(rng: random.Random) -> str:
    thing = rng.choice(CREATURES + OBJECTS)
    first, second = rng.sample(NAMES, 2)
    quality = rng.choice(QUALITIES)
    return rng.choice(
        (
            f"Tell me a short story about {first} and a {quality} {thing}.",
            f"Write a short story with the words {thing}, {rng.choice(OBJECTS)} and {quality}.",
            f"Write a short bedtime story about {first}, {second} and a {thing}. The lesson is to "
            f"{rng.choice(LESSONS)}.",
            f"Write a very short story for a small child about a {quality} {thing} who wants to "
            f"{rng.choice(WISHES)}. Use simple words.",
        )
    )


def _explain(rng: random.Random) -> str:
    topic = rng.choice(TOPICS)
    return rng.choice(
        (
            f"What is {topic}? Answer in simple words.",
            f"Explain {topic} to a child in a few sentences.",
            f"Give me three facts about {topic}.",
            f"Why is {topic} important? Answer in one short paragraph.",
        )
    )


def _howto(rng: random.Random) -> str:
    task = rng.choice(TASKS)
    frames = (
        "How do I {}? Give short steps.",
        "List four tips to {}.",
        "What is the best way to {}?",
    )
    return rng.choice(frames).format(task)


def _code(rng: random.Random) -> str:
    function = rng.choice(FUNCTIONS)
    frames = (
        "Write a Python function that {}.",
        "Show me short Python code that {}. Add a small example.",
    )
    return rng.choice(frames).format(function)


# (kind, its share of the corpus, its prompt)
KINDS: tuple[tuple[str, float, Callable[[random.Random], str]], ...] = (
    ("story", 0.50, _story),
    ("explain", 0.18, _explain),
    ("code", 0.17, _code),
    ("howto", 0.15, _howto),
)


def draw_prompts(num_chats: int, seed: int) -> list[tuple[str, str]]:
    """`num_chats` pairs (kind, prompt) from the templates; prompts repeat, answers are sampled
    anew."""
    rng = random.Random(seed)
    kinds = rng.choices(KINDS, weights=[share for _, share, _ in KINDS], k=num_chats)
    return [(kind, prompt(rng)) for kind, _, prompt in kinds]
