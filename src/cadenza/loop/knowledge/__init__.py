"""Knowledge: pages that runs leave for later runs; advice, never control flow.

Start at:    `cadenza.loop.agents.knowledge_agent.KnowledgeAgent`; here `observations`
             (what is kept, when runs replicate, pages from it), `pages` (format, files), `lint`.
Promise:     an ingest happens whole and once per (run, cycle), whoever else writes and whatever is
             killed; a person's words are kept; no name leads out of the folder.
May import:  `core`, `loop.contracts`, `loop.llm`.  Must not import: agents, orchestrator, store.
Adding one:  a kind of page in `observations.PageType`, `Rows.of` and `page_bytes`.
"""
