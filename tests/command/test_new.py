"""`nopf new` as a user calls it."""

from tests.command.calling import invoke


def test_new_writes_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("new", "robot.py").exit_code == 0
    assert "nopf check robot.py:model" in (tmp_path / "robot.py").read_text()
    assert invoke("new", "robot.py").exit_code == 2
    assert invoke("new", "robot.txt").exit_code == 2
