import subprocess
import sys


def test_events_and_the_store_package_do_not_load_the_database_library():
    code = (
        "import sys, cadenza.loop.events, cadenza.loop.store, cadenza.loop.store.rows; "
        "print([name for name in ('sqlalchemy', 'alembic', 'torch') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
