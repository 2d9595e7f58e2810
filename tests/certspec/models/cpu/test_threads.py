"""How many threads a pass gets: what took less time, looked at again now and then."""

from certspec.models.cpu.threads import ThreadChoice


def run(choice, seconds, count, work=1000, limit=4):
    """``count`` passes of which one thread needs ``seconds[0]`` and all need ``seconds[1]``; what
    was picked."""
    picked = []
    for _ in range(count):
        threads = choice.pick(work, limit)
        choice.report(work, limit, threads, seconds[threads > 1])
        picked.append(threads)
    return picked


def test_both_are_tried_and_then_the_faster_one_is_taken():
    for seconds, best in (((2.0, 1.0), 4), ((1.0, 2.0), 1)):
        picked = run(ThreadChoice(), seconds, 60)
        assert sorted(picked[:6]) == [1, 1, 1, 4, 4, 4]
        assert set(picked[6:]) == {best}


def test_the_other_one_is_looked_at_again_and_taken_once_it_is_faster():
    choice = ThreadChoice()
    run(choice, (1.0, 2.0), 100)
    assert run(choice, (3.0, 2.0), 1000)[-20:].count(4) >= 19


def test_after_a_load_went_away_one_look_is_enough_to_try_all_threads_again():
    choice = ThreadChoice()
    run(choice, (2.0, 1.0), 100)
    run(choice, (2.0, 5.0), 300)  # something else runs beside
    picked = run(choice, (2.0, 1.0), 80)
    first = picked.index(4)
    assert first < 64 and set(picked[first + 6 :]) == {4}


def test_sizes_are_judged_apart_and_one_thread_is_no_choice():
    choice = ThreadChoice()
    run(choice, (1.0, 2.0), 20, work=1000)
    run(choice, (2.0, 1.0), 20, work=1_000_000)
    assert choice.pick(1000, 4) == 1 and choice.pick(1_000_000, 4) == 4
    assert run(choice, (1.0, 1.0), 10, limit=1) == [1] * 10


def test_larger_passes_than_such_as_are_faster_together_are_not_tried_alone():
    choice = ThreadChoice()
    run(choice, (2.0, 1.0), 6, work=1000)
    assert set(run(choice, (2.0, 1.0), 60, work=1_000_000)) == {4}
    assert run(choice, (1.0, 2.0), 2000, work=1_000_000)[-20:].count(1) >= 19
    assert 1 in run(choice, (2.0, 1.0), 6, work=100)
