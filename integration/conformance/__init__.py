"""One suite of cases for two brokers: a real one, and the model in `txnproducer._broker`.

Why it exists: the model judges the producer, so something has to judge the model. Each case puts
requests to a broker and looks at what became of them; everything asked and seen is a transcript.
A real broker's transcripts are the truth, frozen in `tests/data/broker_transcripts.json`; the
model's have to be equal, line by line.
Owns: the cases, both brokers as cases see them, the transcripts. Must not know: the producer.
"""
