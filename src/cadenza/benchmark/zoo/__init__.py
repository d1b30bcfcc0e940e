"""Partner populations: train them, measure them, play everybody with everybody.

Start at:    `build.train_zoo` (a configuration in, a sealed zoo out), `matrix.cross_play`,
             `responses.train_responses` and `verdict.verdict_report`, which judge egos.
Promise:     a zoo is a pure function of its configuration: workers, executor and kills change no
             byte.
May import:  everything below `loop`.
Adding one:  a method is one file with a `stacked.Population`, and its name in `config` and `jobs`.
"""
