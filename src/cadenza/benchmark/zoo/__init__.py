"""Partner populations: train them, measure them, play everybody with everybody.

Start at:    `build.train_zoo` (a configuration in, a sealed zoo out), `responses.train_responses`
             and `judging.judge`, which plays everybody with everybody and writes the verdict.
Promise:     a zoo is a pure function of its configuration: workers, executor and kills change no
             byte.
May import:  everything below `loop`.
Adding one:  a method is one file with a `stacked.Population`, and its name in `config` and `jobs`.
"""
