"""The README's tour runs, word by word."""

import readme_tour


def test_tour():
    assert len(readme_tour.blocks("python")) >= 4
    assert len(readme_tour.commands()) >= 3
    readme_tour.run()
