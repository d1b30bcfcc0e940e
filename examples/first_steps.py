"""Train, judge, keep, use: the whole of it on one page, a minute or two.

python examples/first_steps.py
"""

import gymnasium

import cadenza

agent = cadenza.SAC("Pendulum-v1", seed=0, learning_rate=1e-3).learn(5_000)
print(agent.evaluate(episodes=20))  # mean return with its 95 % interval
agent.save("runs/examples/first_steps/agent")

again = cadenza.SAC.load("runs/examples/first_steps/agent")
env = gymnasium.make("Pendulum-v1")
observation, _ = env.reset(seed=1)
observation, reward, *_ = env.step(again.predict(observation))
