import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes transactions with the Java client and notes every call, as driver.py does with the Python
 * clients: the same transactions, pauses, time-outs and lines. Arguments: servers, transactional
 * id, name of the writer, workload, topics, partitions, the end on the monotonic clock, file for
 * the lines; for a copier the topic it reads and its group. SIGTERM lets it end its transaction and close.
 */
public final class ChaosDriver {
    private static final long PAUSE_MS = 20;
    private static final double LAST_CALLS_S = 20;
    private static final int RECORDS = 12;
    private static final int ABORT_EVERY = 5;
    private static final double TURN_S = 1.5;
    private static final long AWAY_MS = 1000;
    private static final double MEMBER_S = 5;

    private enum Verdict {
        AGAIN,
        ABORT,
        UNKNOWN
    }

    private static final class RestartNeeded extends Exception {}

    private record Row(String topic, int partition, String value) {}

    private final Properties settings = new Properties();
    private final String id;
    private final String writer;
    private final String workload;
    private final String[] topics;
    private final int partitions;
    private final double until;
    private final FileOutputStream history;
    private volatile boolean stopped = false;
    private final String source;
    private final String group;
    private int number = 0;
    private KafkaConsumer<byte[], byte[]> input = null;
    private List<ConsumerRecord<byte[], byte[]>> batch = List.of();

    private ChaosDriver(String[] args) throws Exception {
        id = args[1];
        writer = args[2];
        workload = args[3];
        topics = args[4].split(",");
        partitions = Integer.parseInt(args[5]);
        until = Double.parseDouble(args[6]);
        history = new FileOutputStream(args[7], true);
        source = args.length > 8 ? args[8] : "";
        group = args.length > 9 ? args[9] : "";
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", id);
        settings.put("linger.ms", "5");
        settings.put("request.timeout.ms", "5000");
        settings.put("delivery.timeout.ms", "15000");
        settings.put("max.block.ms", "15000");
        settings.put("transaction.timeout.ms", "20000");
    }

    public static void main(String[] args) throws Exception {
        ChaosDriver driver = new ChaosDriver(args);
        Thread main = Thread.currentThread();
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    driver.stopped = true;
                                    try {
                                        main.join(15_000);
                                    } catch (InterruptedException error) {
                                        // The process ends in any case.
                                    }
                                }));
        driver.run();
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private boolean goesOn() {
        return !stopped && now() < until;
    }

    private void run() throws Exception {
        while (goesOn()) {
            KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(
                            settings, new ByteArraySerializer(), new ByteArraySerializer());
            try {
                call("init", producer::initTransactions);
                if (workload.equals("copy")) {
                    copy(producer);
                } else {
                    write(producer);
                }
            } catch (RestartNeeded error) {
                // The next producer goes on.
            } catch (RuntimeException error) {
                Thread.sleep(200); // a client that refuses at once would make this a busy loop
            } finally {
                producer.close(Duration.ofSeconds(5));
            }
            if (workload.equals("takeover") && goesOn()) {
                Thread.sleep(AWAY_MS); // the other writer takes the id meanwhile
            }
        }
    }

    private void write(KafkaProducer<byte[], byte[]> producer) throws Exception {
        double end = now() + TURN_S;
        while (goesOn()) {
            number++;
            if (workload.equals("takeover") && now() > end) {
                // It leaves with a transaction open, for the other writer to end.
                fill(producer);
                return;
            }
            one(producer);
            Thread.sleep(PAUSE_MS); // every client is given the same load, far below its limit
        }
    }

    /** Copies what the group's partitions have, each batch with its offsets in a transaction. */
    private void copy(KafkaProducer<byte[], byte[]> producer) throws Exception {
        double end = now() + MEMBER_S;
        boolean stays = writer.startsWith("a");
        input = new KafkaConsumer<>(inputSettings());
        try {
            input.subscribe(List.of(source));
            while (goesOn() && (stays || now() < end)) {
                batch = new ArrayList<>();
                input.poll(Duration.ofMillis(300)).forEach(batch::add);
                if (batch.isEmpty()) {
                    continue;
                }
                number++;
                if (!one(producer)) {
                    rewind();
                }
            }
        } finally {
            input.close();
            input = null;
        }
    }

    private Map<String, Object> inputSettings() {
        Map<String, Object> found = new HashMap<>();
        found.put("bootstrap.servers", settings.get("bootstrap.servers"));
        found.put("group.id", group);
        found.put("isolation.level", "read_committed");
        found.put("enable.auto.commit", "false");
        found.put("auto.offset.reset", "earliest");
        found.put("max.poll.records", String.valueOf(RECORDS));
        found.put("session.timeout.ms", "6000");
        found.put("heartbeat.interval.ms", "1000");
        found.put("key.deserializer", ByteArrayDeserializer.class);
        found.put("value.deserializer", ByteArrayDeserializer.class);
        return found;
    }

    private void rewind() {
        Map<TopicPartition, OffsetAndMetadata> found = input.committed(input.assignment());
        for (TopicPartition place : input.assignment()) {
            OffsetAndMetadata at = found.get(place);
            input.seek(place, at == null ? 0 : at.offset());
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> offsets() {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> each : batch) {
            TopicPartition place = new TopicPartition(each.topic(), each.partition());
            found.put(place, new OffsetAndMetadata(each.offset() + 1));
        }
        return found;
    }

    private List<Row> rows() {
        List<Row> rows = new ArrayList<>();
        if (input != null) {
            for (ConsumerRecord<byte[], byte[]> each : batch) {
                String head = writer + ":" + number + ":" + rows.size() + ":" + batch.size();
                String from = each.partition() + "-" + each.offset();
                rows.add(new Row(topics[0], each.partition(), head + ":" + from));
            }
            return rows;
        }
        boolean bank = workload.equals("bank");
        int count = bank ? 2 : RECORDS;
        for (int index = 0; index < count; index++) {
            String topic = bank ? topics[index] : topics[0];
            int at = !bank ? index : index == 0 ? number : number * 7 + 3;
            String value = writer + ":" + number + ":" + index + ":" + count;
            rows.add(new Row(topic, at % partitions, value));
        }
        return rows;
    }

    private void fill(KafkaProducer<byte[], byte[]> producer) throws Exception {
        List<Row> rows = rows();
        call("begin", producer::beginTransaction);
        String records =
                rows.stream()
                        .map(
                                row ->
                                        String.format(
                                                "[\"%s\", %d, \"%s\"]",
                                                row.topic, row.partition, row.value))
                        .collect(Collectors.joining(", "));
        note("write", "call", ", \"records\": [" + records + "]");
        for (Row row : rows) {
            byte[] value = row.value.getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(row.topic, row.partition, null, value));
        }
        note("write", "ok", "");
        if (input != null) {
            call(
                    "offsets",
                    () -> producer.sendOffsetsToTransaction(offsets(), input.groupMetadata()));
        }
    }

    /** Writes one transaction, and returns whether it was committed. */
    private boolean one(KafkaProducer<byte[], byte[]> producer) throws Exception {
        try {
            fill(producer);
            if (number % ABORT_EVERY == 0) {
                again("abort", producer::abortTransaction);
                tell("aborted");
                return false;
            }
        } catch (RuntimeException error) {
            after(producer, verdict(error), false, error);
            return false;
        }
        try {
            again("commit", producer::commitTransaction);
        } catch (RuntimeException error) {
            after(producer, verdict(error), true, error);
            return false;
        }
        tell("committed");
        return true;
    }

    /** What the client's documentation tells an application to do. */
    private static Verdict verdict(RuntimeException error) {
        if (error instanceof TimeoutException || error instanceof InterruptException) {
            return Verdict.AGAIN;
        }
        if (error instanceof ProducerFencedException
                || error instanceof OutOfOrderSequenceException
                || error instanceof AuthorizationException
                || error instanceof ApplicationRecoverableException
                || !(error instanceof KafkaException)) {
            return Verdict.UNKNOWN;
        }
        return Verdict.ABORT;
    }

    private void after(
            KafkaProducer<byte[], byte[]> producer,
            Verdict verdict,
            boolean committing,
            RuntimeException error)
            throws Exception {
        if (!committing) {
            note("write", "error", error(error));
        }
        if (verdict == Verdict.ABORT || (verdict == Verdict.AGAIN && !committing)) {
            try {
                again("abort", producer::abortTransaction);
            } catch (RuntimeException failed) {
                // No call has said of the commit that was asked for that it is aborted.
                tell(committing ? "unknown" : "aborted");
                throw new RestartNeeded();
            }
            tell("aborted");
            return;
        }
        tell(committing ? "unknown" : "aborted");
        throw new RestartNeeded();
    }

    private void again(String name, Runnable call) throws Exception {
        while (true) {
            try {
                call(name, call);
                return;
            } catch (RuntimeException error) {
                if (verdict(error) != Verdict.AGAIN || now() > until + LAST_CALLS_S) {
                    throw error;
                }
                Thread.sleep(50); // as above, where the client refuses at once
            }
        }
    }

    private void call(String name, Runnable call) throws Exception {
        note(name, "call", "");
        try {
            call.run();
        } catch (RuntimeException error) {
            note(name, "error", error(error));
            throw error;
        }
        note(name, "ok", "");
    }

    private void tell(String outcome) throws Exception {
        note("told", "ok", ", \"outcome\": \"" + outcome + "\"");
    }

    private static String error(RuntimeException error) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        text = text.replaceAll("[^ -~]|[\"\\\\]", " ");
        return ", \"error\": \"" + text.substring(0, Math.min(200, text.length())) + "\"";
    }

    private void note(String call, String at, String more) throws Exception {
        String line =
                String.format(
                        Locale.ROOT,
                        "{\"t\": %.4f, \"writer\": \"%s\", \"id\": \"%s\", \"txn\": %d,"
                                + " \"call\": \"%s\", \"at\": \"%s\"%s}%n",
                        now(),
                        writer,
                        id,
                        number,
                        call,
                        at,
                        more);
        // One write of the whole line: a killed process leaves no half a line behind.
        history.write(line.getBytes(StandardCharsets.UTF_8));
    }
}
