"""The classes of Objects365 (Shao et al. 2019), version 2."""

OBJECTS365_CLASSES = tuple(  # by category id, 1 to 365; spelling mistakes of the annotation file are corrected
    """person, sneakers, chair, other shoes, hat, car, lamp, glasses, bottle, desk, cup, street lights, cabinet/shelf,
    handbag/satchel, bracelet, plate, picture/frame, helmet, book, gloves, storage box, boat, leather shoes, flower,
    bench, potted plant, bowl/basin, flag, pillow, boots, vase, microphone, necklace, ring, suv, wine glass, belt,
    monitor/tv, backpack, umbrella, traffic light, speaker, watch, tie, trash bin can, slippers, bicycle, stool,
    barrel/bucket, van, couch, sandals, basket, drum, pen/pencil, bus, wild bird, high heels, motorcycle, guitar,
    carpet, cell phone, bread, camera, canned, truck, traffic cone, cymbal, lifesaver, towel, stuffed toy, candle,
    sailboat, laptop, awning, bed, faucet, tent, horse, mirror, power outlet, sink, apple, air conditioner, knife,
    hockey stick, paddle, pickup truck, fork, traffic sign, balloon, tripod, dog, spoon, clock, pot, cow, cake,
    dining table, sheep, hanger, blackboard/whiteboard, napkin, other fish, orange/tangerine, toiletry, keyboard,
    tomato, lantern, machinery vehicle, fan, green vegetables, banana, baseball glove, airplane, mouse, train,
    pumpkin, soccer, skiboard, luggage, nightstand, tea pot, telephone, trolley, head phone, sports car, stop sign,
    dessert, scooter, stroller, crane, remote, refrigerator, oven, lemon, duck, baseball bat, surveillance camera,
    cat, jug, broccoli, piano, pizza, elephant, skateboard, surfboard, gun, skating and skiing shoes, gas stove,
    donut, bow tie, carrot, toilet, kite, strawberry, other balls, shovel, pepper, computer box, toilet paper,
    cleaning products, chopsticks, microwave, pigeon, baseball, cutting/chopping board, coffee table, side table,
    scissors, marker, pie, ladder, snowboard, cookies, radiator, fire hydrant, basketball, zebra, grape, giraffe,
    potato, sausage, tricycle, violin, egg, fire extinguisher, candy, fire truck, billiards, converter, bathtub,
    wheelchair, golf club, briefcase, cucumber, cigar/cigarette, paint brush, pear, heavy truck, hamburger,
    extractor, extension cord, tong, tennis racket, folder, american football, earphone, mask, kettle, tennis, ship,
    swing, coffee machine, slide, carriage, onion, green beans, projector, frisbee, washing machine/drying machine,
    chicken, printer, watermelon, saxophone, tissue, toothbrush, ice cream, hot air balloon, cello, french fries,
    scale, trophy, cabbage, hot dog, blender, peach, rice, wallet/purse, volleyball, deer, goose, tape, tablet,
    cosmetics, trumpet, pineapple, golf ball, ambulance, parking meter, mango, key, hurdle, fishing rod, medal,
    flute, brush, penguin, megaphone, corn, lettuce, garlic, swan, helicopter, green onion, sandwich, nuts, speed
    limit sign, induction cooker, broom, trombone, plum, rickshaw, goldfish, kiwi fruit, router/modem, poker card,
    toaster, shrimp, sushi, cheese, notepaper, cherry, pliers, cd, pasta, hammer, cue, avocado, hami melon, flask,
    mushroom, screwdriver, soap, recorder, bear, eggplant, board eraser, coconut, tape measure/ruler, pig,
    showerhead, globe, chips, steak, crosswalk sign, stapler, camel, formula 1, pomegranate, dishwasher, crab,
    hoverboard, meatball, rice cooker, tuba, calculator, papaya, antelope, parrot, seal, butterfly, dumbbell,
    donkey, lion, urinal, dolphin, electric drill, hair dryer, egg tart, jellyfish, treadmill, lighter, grapefruit,
    game board, mop, radish, baozi, target, french, spring rolls, monkey, rabbit, pencil case, yak, red cabbage,
    binoculars, asparagus, barbell, scallop, noodles, comb, dumpling, oyster, table tennis paddle, cosmetics
    brush/eyeliner pencil, chainsaw, eraser, lobster, durian, okra, lipstick, cosmetics mirror, curling, table
    tennis""".replace("\n   ", "").split(", ")
)
