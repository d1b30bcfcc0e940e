"""Alembic's entry point: runs the migrations inside the transaction that the caller opened."""

from alembic import context

from cadenza.loop.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
